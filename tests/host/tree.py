"""A world with a tree of switches: workers, a leaf for each rack, a root, and a bag of packets between all of them.

The account is by values: every buffer of a leaf, every slot of the root and every result must be the sum of the
contributions of its members, as their workers have sent them, and count and weight must be theirs.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np

from kofn_common.wire.packet import MEMBERS_BITS, MEMBERS_BYTES, Kind, KofnHeader, leaf_shift, places_of
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX
from kofn_host.protocol.instructions import Send
from kofn_host.protocol.results import BlockId
from tests.host.mortal import Mortal
from tests.host.protocol.specification import leaf_model
from tests.host.protocol.specification.leaf_model import LeafModel, Phase
from tests.host.protocol.specification.root_model import RootModel
from tests.host.world import LANES, SWITCH, Packet, Part, sums_in

UP = frozenset({Kind.CONTRIBUTE, Kind.PULL})


FIRST_LEAF = -10
"""The receiver of packets to the leaf of rack 0; the root is SWITCH."""


def leaf_of(rack: int) -> int:
    return FIRST_LEAF - rack


def rack_of(to: int) -> int:
    return FIRST_LEAF - to


class Sent(NamedTuple):
    """A contribution as its worker sends it."""

    values: np.ndarray
    counted: int
    weight: int


class TreeAccount:
    """The contributions that workers have sent, and the results of closed blocks."""

    def __init__(self, places: Sequence[int]) -> None:
        self._parts: dict[int, Part] = {
            place + RACK_WORKERS_MAX * part: (rank, part) for rank, place in enumerate(places) for part in range(PARTS)
        }
        """Worker and part by the bit among the members of all racks."""
        self.sent: dict[tuple[BlockId, Part, tuple[int, int]], Sent] = {}
        """By block, contribution, and format (scale, lanes)."""
        self.added: dict[BlockId, dict[Part, np.ndarray]] = {}
        self.weights: dict[BlockId, dict[Part, int]] = {}
        self.closed: dict[BlockId, int] = {}

    def parts(self, members: int) -> list[Part]:
        """Return the contributions in a bitmap of all racks."""
        return [self._parts[bit] for bit in range(members.bit_length()) if members >> bit & 1]

    def send(self, rank: int, header: KofnHeader, values: bytes) -> None:
        """Note a contribution; a repetition must be the same."""
        if header.kind != Kind.CONTRIBUTE:
            return
        key = (BlockId(header.iteration, header.block), (rank, header.part), (header.scale, header.lanes))
        sent = Sent(sums_in(values, header.lanes), header.count, header.weight)
        before = self.sent.setdefault(key, sent)
        same = np.array_equal(before.values, sent.values) and before[1:] == sent[1:]
        assert same, f"{key} was sent with two contents"

    def check_sum(
        self, id: BlockId, members: int, form: tuple[int, int], values: np.ndarray, count: int, weight: int
    ) -> None:
        """Check that a sum is that of its members' contributions in this format."""
        sent = [self.sent[id, part, form] for part in self.parts(members)]
        assert np.array_equal(values, sum(each.values for each in sent)), f"a sum of {id} is not that of its members"
        assert count == sum(each.counted for each in sent), f"a sum of {id} has a wrong count"
        assert weight == sum(each.weight for each in sent), f"a sum of {id} has a wrong weight"

    def close(self, id: BlockId, members: int, form: tuple[int, int]) -> None:
        """Note that the root has closed a block."""
        assert id not in self.closed, f"{id} was closed twice"
        self.closed[id] = members
        sent = {part: self.sent[id, part, form] for part in self.parts(members)}
        self.added[id] = {part: each.values for part, each in sent.items()}
        self.weights[id] = {part: each.weight for part, each in sent.items()}

    def copy(self) -> Self:
        other = copy(self)
        other.sent, other.added, other.weights, other.closed = (
            dict(self.sent),
            dict(self.added),
            dict(self.weights),
            dict(self.closed),
        )
        return other

    def forget(self, held: set[BlockId]) -> None:
        """Lose the slots: blocks without a known result were never summed."""
        for id in [known for known in self.closed if known not in held]:
            del self.added[id], self.weights[id], self.closed[id]


class Tree(Mortal):
    """A World with `racks` racks."""

    account: TreeAccount  # type: ignore[assignment]  # with the methods that a World uses

    def __init__(self, *, racks: int, workers: int, k: int, slots: int, **options) -> None:
        self.racks, self.each = racks, workers // racks
        self.places = places_of(workers, racks)
        self.leaves = [LeafModel(rack=rack, workers=self.each, k=k, slots=slots) for rack in range(racks)]
        super().__init__(workers=workers, k=k, slots=slots, racks=racks, switch=self._root, **options)
        self.account = TreeAccount(self.places)
        self.change_k(k)
        self.unadmitted = self.ready_to_resume = frozenset[int]()
        """Switches that do not admit the present generation yet."""

    def _root(self, *, workers: int, k: int, slots: int) -> RootModel:
        return RootModel(racks=self.racks, k=k, slots=slots)

    # -- packets

    def send(self, rank: int, packets: Sequence[Send]) -> None:
        rack, worker = divmod(self.places[rank], MEMBERS_BITS)
        for header, values, _ in packets:
            assert (header.worker, header.iteration) == (worker, self.workers[rank].protocol.iteration)
            self.account.send(rank, header, values)
            self.bag.append(Packet(leaf_of(rack), header, values))

    def deliver(self, packet: Packet) -> None:
        if packet.to >= 0:
            self.deliver_together(packet.to, [packet])
            return
        if packet.to == SWITCH:
            answers = self._at_root(packet)
            self.bag += [_packed(answer, leaf_of(answer.to)) for answer in answers]
            return
        rack = rack_of(packet.to)
        leaf = self.leaves[rack]
        if packet.header.kind in UP:
            answers = leaf.below(packet.header, packet.values)
        else:
            answers = leaf.above(_unpacked(packet))
        self._check_leaf(leaf, packet.header)
        first = rack * self.each
        self.bag += [_packed(each, SWITCH if each.to == leaf_model.ROOT else first + each.to) for each in answers]

    def _at_root(self, packet: Packet) -> list[leaf_model.Packet]:
        """Hand a packet to the root, and account for the result."""
        header = packet.header
        answers = self.switch.handle(header, packet.values)
        slot = self.switch.slots[header.slot % len(self.switch.slots)]
        if slot.members:
            form = slot.format[0], slot.format[2]
            id = BlockId(*slot.block_id[1:])
            self.account.check_sum(id, slot.members, form, slot.values[:LANES], slot.count, slot.weight)
        if answers and answers[0].header.kind == Kind.RESULT:
            assert slot.count >= (header.k or self.switch.k), "closed without k contributions"
            self.account.close(BlockId(*slot.block_id[1:]), slot.members, (slot.format[0], slot.format[2]))
        return answers

    def _check_leaf(self, leaf: LeafModel, header: KofnHeader) -> None:
        """Check the buffers of a slot: each is the sum of its members, and no contribution is in both."""
        slot = leaf.slots[header.slot % len(leaf.slots)]
        if slot.phase is not Phase.OPEN:
            return
        assert not slot.open.members & slot.sent.members, "a contribution is in two buffers"
        assert not (slot.open.members | slot.sent.members | slot.acked) & ~slot.taken, "a buffer has what is not taken"
        for held in (slot.open, slot.sent):
            if held.members:
                form, members = (slot.format[0], slot.format[2]), held.members << MEMBERS_BITS * leaf.rack
                id = BlockId(*slot.block_id[1:])
                self.account.check_sum(id, members, form, held.values[:LANES], held.count, held.weight)

    def place(self, rank: int) -> int:
        return self.places[rank]

    def worker_of(self, packet: Packet) -> int | None:
        if packet.to >= 0:
            return packet.to
        if packet.to == SWITCH or packet.header.kind not in UP:
            return None
        return rack_of(packet.to) * self.each + packet.header.worker

    # -- the controller

    def change_k(self, k: int) -> None:
        super().change_k(k)
        for leaf in self.leaves:
            leaf.k, leaf.shift = k, leaf_shift(k, len(self.workers), self.racks)

    def restart_switch(self) -> None:
        """Lose the root's slots; no switch admits the next generation before all workers have regrouped."""
        super().restart_switch()
        self.unadmitted = frozenset()

    def regroup(self, rank: int) -> None:
        super().regroup(rank)
        if not self.uninformed:
            self.switch.generation = -1
            self.unadmitted, self.ready_to_resume = frozenset(range(-1, self.racks)), self.resuming
            self.resuming = frozenset()

    def admit(self, switch: int) -> None:
        """Let a switch (-1: the root, else a leaf) admit the generation; after the last one the workers resume."""
        self.unadmitted -= {switch}
        (self.switch if switch < 0 else self.leaves[switch]).generation = self.generation
        if not self.unadmitted:
            self.resuming = self.ready_to_resume

    def restart_leaf(self, rack: int) -> None:
        """Lose a leaf's slots; it admits the same generation at once."""
        old = self.leaves[rack]
        new = LeafModel(rack=rack, workers=self.each, k=old.k, slots=len(old.slots), shift=old.shift)
        new.generation = old.generation
        self.leaves[rack] = new

    def _fair_round(self, live: list[int], target: int) -> None:
        for rank in tuple(self.uninformed):
            self.regroup(rank)
        for switch in tuple(self.unadmitted):
            self.admit(switch)
        super()._fair_round(live, target)

    def copy_switches(self) -> None:
        """Replace the switches and their account by copies, which may change."""
        self.switch, self.account = copy(self.switch), self.account.copy()
        self.leaves = [copy(leaf) for leaf in self.leaves]
        for switch in (self.switch, *self.leaves):
            switch.slots = [copy(slot) for slot in switch.slots]


def _packed(packet: leaf_model.Packet, to: int) -> Packet:
    bitmaps = b"".join(bitmap.to_bytes(MEMBERS_BYTES) for bitmap in packet.bitmaps)
    return Packet(to, packet.header, bitmaps + packet.values)


def _unpacked(packet: Packet) -> leaf_model.Packet:
    size = MEMBERS_BYTES * packet.header.bitmaps
    bitmaps = tuple(_bitmaps(packet.values[:size]))
    return leaf_model.Packet(packet.to, packet.header, bitmaps, packet.values[size:])


def _bitmaps(body: bytes) -> Iterable[int]:
    return (int.from_bytes(body[at : at + MEMBERS_BYTES]) for at in range(0, len(body), MEMBERS_BYTES))
