"""The root of a tree in plain Python: the table of p4src/slot.p4 for packets of leaves, which P4 obeys.

One job; `handle` takes a leaf's packet and returns the packets that leave, each to a rack.
"""

from dataclasses import dataclass, field

import numpy as np

from kofn_common.wire.packet import EVERYONE, WORD_BYTES, Flag, Kind, KofnHeader
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX
from kofn_host.arrays import Fixed
from tests.host.protocol.specification.leaf_model import Packet
from tests.host.protocol.specification.slot_model import is_ahead, to_numbers, to_values

RACK_BITS = PARTS * RACK_WORKERS_MAX


@dataclass(slots=True)
class RootSlot:
    """One slot.  `members`: of all racks, bit RACK_BITS x rack + RACK_WORKERS_MAX x part + rank."""

    block_id: tuple[int, int, int] = (0, 0, 0)
    members: int = 0
    count: int = 0
    weight: int = 0
    done: bool = False
    told: int = 0
    format: tuple[int, int, int] = (0, 0, 0)  # scale, words, lanes
    values: Fixed = field(default_factory=lambda: np.zeros(1, np.int64))

    def of(self, rack: int) -> int:
        """Return the members of one rack."""
        return self.members >> RACK_BITS * rack & (1 << RACK_BITS) - 1


class RootModel:
    """The slots of a job of `racks` racks, which sum until `k` contributions are in."""

    def __init__(self, *, racks: int, k: int, slots: int) -> None:
        self.racks, self.k = racks, k
        self.generation = 0
        self.slots = [RootSlot() for _ in range(slots)]

    def handle(self, header: KofnHeader, values: bytes) -> list[Packet]:  # noqa: PLR0911  # one return for each row of the table
        rack, k = header.worker, header.k or self.k
        if header.generation != self.generation:
            return []
        index = header.slot % len(self.slots)
        slot = self.slots[index]
        block_id = (header.generation, header.iteration, header.block)
        form = (header.scale, header.words, header.lanes)
        increment, pulls = header.members << RACK_BITS * rack, header.kind == Kind.PULL
        if block_id < slot.block_id:
            return [self._reply(header, Kind.STALE)]
        if block_id > slot.block_id:
            if pulls or is_ahead(header, slot.block_id, len(self.slots)):
                return []
            numbers = to_numbers(values, header.lanes)
            slot = RootSlot(block_id, increment, header.count, header.weight, False, k, form, numbers)
            self.slots[index] = slot
        elif slot.format[1] != header.words:
            return [self._refusal(slot, header._replace(flags=Flag.OTHER_WORDS), k)]
        elif slot.done:
            return [self._result(slot, header, Kind.LATE, rack, k)]
        elif pulls or not increment & ~slot.members:
            pass
        elif slot.format != form:
            return [self._refusal(slot, header, k)]
        elif not increment & slot.members:
            slot.values = slot.values + to_numbers(values, header.lanes)
            slot.members |= increment
            slot.count += header.count
            slot.weight += header.weight
        if slot.count >= k:
            slot.done = True
            return [self._result(slot, header, Kind.RESULT, to, k) for to in range(self.racks)]
        missing = k - slot.count
        if missing > slot.told // 2:
            return [self._added(slot, header, rack, k)]
        slot.told = missing
        return [self._added(slot, header, to, k) for to in range(self.racks)]

    def _added(self, slot: RootSlot, header: KofnHeader, to: int, k: int) -> Packet:
        """Return how much of a sum a rack learns: its own members only if it has sent the packet."""
        members = slot.of(to) if to == header.worker else 0
        told = self._state(slot, header, k)._replace(kind=Kind.ADDED, words=0, members=members)
        return Packet(to, told._replace(worker=to, rack=to))

    def _result(self, slot: RootSlot, header: KofnHeader, kind: Kind, to: int, k: int) -> Packet:
        bitmaps = tuple(slot.of(rack) for rack in range(self.racks))
        state = self._state(slot, header, k)._replace(kind=kind, bitmaps=self.racks)
        state = state._replace(members=slot.of(header.worker), worker=to, rack=to)
        if header.recipient != EVERYONE and header.recipient >> 8 != to:
            return Packet(to, state._replace(words=0), bitmaps)
        return Packet(to, state, bitmaps, to_values(slot.values, slot.format[2]))

    def _refusal(self, slot: RootSlot, header: KofnHeader, k: int) -> Packet:
        state = self._state(slot, header, k)._replace(members=slot.of(header.worker))
        return self._reply(state, Kind.FORMAT_MISMATCH)

    def _state(self, slot: RootSlot, header: KofnHeader, k: int) -> KofnHeader:
        scale, _, lanes = slot.format
        return header._replace(count=slot.count, weight=slot.weight, scale=scale, lanes=lanes, k=k)

    def _reply(self, header: KofnHeader, kind: Kind) -> Packet:
        return Packet(
            header.worker, header._replace(kind=kind, rack=header.worker), (), bytes(header.words * WORD_BYTES)
        )
