"""Every interleaving of a small tree of two racks, with the C core, and with the leaf's and the root's rules."""

import os
from collections.abc import Iterator

import pytest

from kofn_common.wire.packet import KofnHeader
from kofn_common.wire.sizes import RACK_WORKERS_MAX
from tests.host.protocol.specification.leaf_model import LeafSlot
from tests.host.protocol.test_protocol_exhaustive import ALL, Key, Setting, Small, Step, block_id_of, explore, small
from tests.host.tree import Tree, leaf_of
from tests.host.world import SWITCH


class SmallTree(Small, Tree):
    """A tree with a budget of faults."""

    leaf_restarts = 0

    def copy_switches(self) -> None:
        Tree.copy_switches(self)

    def switches_key(self) -> Key:
        told = tuple(slot.told for slot in self.switch.slots)
        leaves = tuple((leaf.generation, leaf.shift, *map(_leaf_key, leaf.slots)) for leaf in self.leaves)
        regroup = (self.switch.generation, self.unadmitted, self.ready_to_resume, self.leaf_restarts)
        return super().switches_key(), told, leaves, regroup

    def steps(self) -> Iterator[Step]:
        yield from super().steps()
        for switch in self.unadmitted:
            yield f"admit {switch}", SWITCH, lambda world, s=switch: world.admit(s)
        for rack in range(self.racks) if self.leaf_restarts else ():
            yield f"restart leaf {rack}", SWITCH, lambda world, r=rack: world.crash_leaf(r)

    def crash_leaf(self, rack: int) -> None:
        self.leaf_restarts -= 1
        self.restart_leaf(rack)

    def needs_repetition(self, rank: int, header: KofnHeader) -> bool:
        """Return whether no packet about this block is between the worker and the root, and no switch just waits."""
        rack = rank // self.each
        about = [packet for packet in self.bag if block_id_of(packet.header) == block_id_of(header)]
        under_way = any(
            packet.to in (rank, leaf_of(rack)) or (packet.to == SWITCH and packet.header.worker == rack)
            for packet in about
        )
        return not under_way and not self._just_waits(rank, rack, header) and not self.workers[rank].asking

    def _just_waits(self, rank: int, rack: int, header: KofnHeader) -> bool:
        root, leaf = (of.slots[header.slot % len(of.slots)] for of in (self.switch, self.leaves[rack]))
        mine = 1 << RACK_WORKERS_MAX * header.part + rank % self.each
        counted = root.members & mine << self.places[rack * self.each]
        at_root = root.block_id == block_id_of(header) and not root.done and counted and root.count < self.switch.k
        held = leaf.block_id == block_id_of(header) and leaf.open.members & mine and not self.leaves[rack].shift
        return bool(at_root or held)


def _leaf_key(slot: LeafSlot) -> Key:
    buffers = tuple((of.members, of.count) for of in (slot.open, slot.sent))
    result = slot.result and (slot.result.header.words, slot.result.bitmaps, slot.result.header.k)
    known = (slot.confirmed, slot.taken, slot.acked, slot.missing)
    return slot.block_id, slot.phase.value, slot.format, *known, *buffers, result


def tree(setting: Setting, leaf_restarts: int = 0) -> Small:
    world = small(setting, SmallTree, racks=2)
    assert isinstance(world, SmallTree)
    world.leaf_restarts = leaf_restarts
    return world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "leaf_restarts", "states"),
    [
        (Setting(k=(2,), workers=2, blocks=1), 0, 1133),
        pytest.param(Setting(k=(2,), workers=2, blocks=1), 1, 5920, marks=pytest.mark.long),
    ],
)
def test_every_interleaving_of_a_tree_ends(setting: Setting, leaf_restarts: int, states: int) -> None:
    """Fewer states than given would mean that a part is not explored."""
    assert explore(tree(setting, leaf_restarts))[0] >= states


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("KOFN_NIGHTLY") != "1", reason="minutes: `make explore` runs it")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("setting", "leaf_restarts"),
    [
        (Setting(k=(1,), workers=2, blocks=1), 0),
        (Setting(k=(2,), workers=2, blocks=1, losses=1), 0),
        (Setting(k=(2,), workers=2, blocks=1, restarts=1), 0),
        (Setting(k=(2,), workers=2, blocks=1, restarts=1), 1),
        (Setting(k=(2,), workers=2, blocks=1, deaths=1), 0),
        (Setting(k=(2,), workers=2, blocks=1, duplications=1, scales=(0, 3)), 0),
        (Setting(k=(2,), workers=2, blocks=1, lanes=(0, 1)), 1),
        (Setting(k=(2,), workers=2, scattered=True), 0),
        (Setting(k=(2,), workers=2), 0),
        (Setting(k=(2,), workers=2, restarts=1), 0),
        (Setting(k=(2,), workers=2), 1),
        (Setting(k=(4,), workers=4, blocks=1), 0),
        (Setting(k=(3,), workers=4, blocks=1), 0),
        (Setting(k=(4, 3), workers=4, blocks=1), 0),
        (Setting(k=(4,), workers=4, blocks=1), 1),
    ],
)
def test_every_interleaving_of_a_larger_tree_ends(setting: Setting, leaf_restarts: int) -> None:
    explored, steps = explore(tree(setting, leaf_restarts))
    print(f"{setting}, {leaf_restarts} restarts of a leaf: {explored} states, {steps} steps")


assert ALL < SWITCH and leaf_of(0) < ALL
