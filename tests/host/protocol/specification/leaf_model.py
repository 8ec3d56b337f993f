"""A leaf switch of a tree in plain Python: the tables of p4src/leaf_below.p4 and leaf_above.p4, which P4 obeys.

One job, one rack; values are integers in NumPy.  `below` takes a worker's packet and `above` one of the root; both
return the packets that leave.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np

from kofn_common.wire.packet import EVERYONE, WORD_BYTES, Flag, Kind, KofnHeader, bit_of
from kofn_host.arrays import Fixed
from tests.host.protocol.specification.slot_model import is_ahead, to_numbers, to_values

ROOT = -1
"""The receiver of packets that go up; workers of the rack are 0 and more."""


class Packet(NamedTuple):
    to: int
    header: KofnHeader
    bitmaps: tuple[int, ...] = ()
    values: bytes = b""


class Phase(Enum):
    EMPTY, OPEN, DONE, GONE = range(4)


@dataclass(slots=True)
class Buffer:
    """A part of the rack's sum: its members, and what belongs to them."""

    members: int = 0
    count: int = 0
    weight: int = 0
    values: Fixed = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(slots=True)
class LeafSlot:
    """One slot.  `taken`: contributions in a buffer, on their way, or in the root's sum; `acked`: those in the sum."""

    block_id: tuple[int, int, int] = (0, 0, 0)
    phase: Phase = Phase.EMPTY
    format: tuple[int, int, int] = (0, 0, 0)  # scale, words, lanes
    confirmed: bool = False
    taken: int = 0
    acked: int = 0
    missing: int = 0
    last: int | None = None
    """The worker of the open buffer's latest contribution; None once an ADDED has gone to it."""
    open: Buffer = field(default_factory=Buffer)
    sent: Buffer = field(default_factory=Buffer)
    result: Packet | None = None


class LeafModel:
    """The slots of rack `rack` of `racks`, with `workers` workers.

    A leaf sends an increment when its rack is complete, or when it holds missing >> `shift` counted contributions.
    """

    def __init__(self, *, rack: int, workers: int, k: int, slots: int, shift: int = 0) -> None:
        self.rack, self.workers, self.k, self.shift = rack, workers, k, shift
        self.generation = 0
        self.slots = [LeafSlot() for _ in range(slots)]
        self.everyone = sum(bit_of(rank, 0) for rank in range(workers))

    def below(self, header: KofnHeader, values: bytes) -> list[Packet]:  # noqa: PLR0911  # one return for each row of the table
        """Take a worker's packet."""
        if header.generation != self.generation:
            return []
        slot, block_id = self._slot(header), _id_of(header)
        mine, form = bit_of(header.worker, header.part), (header.scale, header.words, header.lanes)
        pulls = header.kind == Kind.PULL
        if block_id < slot.block_id:
            return [self._reply(header, Kind.STALE)]
        if block_id > slot.block_id:
            if pulls:
                return [self._ask(header)]
            if is_ahead(header, slot.block_id, len(self.slots)) and not header.flags & Flag.AGAIN:
                return []
            slot = LeafSlot(block_id, Phase.OPEN, form, missing=header.k or self.k)
            self.slots[header.slot % len(self.slots)] = slot
        short = slot.result is not None and slot.result.header.words == 0
        settled = slot.result is not None or slot.confirmed or slot.format[2] == header.lanes
        if not short and slot.format[1] != header.words and settled:
            return [self._refusal(slot, header._replace(flags=Flag.OTHER_WORDS))]
        if slot.result is not None:
            return [self._late(slot.result, header)]
        if slot.phase is Phase.GONE:
            return [self._reply(header, Kind.STALE)]
        if pulls or slot.taken & mine:
            return [self._urged(slot, header, values, 0 if pulls else mine)]
        if slot.format != form:
            return [self._refusal(slot, header) if slot.confirmed else self._urged(slot, header, values, 0)]
        slot.taken |= mine
        numbers = to_numbers(values, header.lanes)
        slot.open = Buffer(
            slot.open.members | mine,
            slot.open.count + header.count,
            slot.open.weight + header.weight,
            slot.open.values + numbers if slot.open.members else numbers,
        )
        slot.last = header.worker
        return [self._freeze(slot, header)] if self._enough(slot, header.k) else []

    def above(self, packet: Packet) -> list[Packet]:
        """Take a packet of the root."""
        header = packet.header
        slot, block_id = self._slot(header), _id_of(header)
        if header.generation != self.generation or block_id < slot.block_id:
            return []
        if header.kind in (Kind.RESULT, Kind.LATE):
            if block_id == slot.block_id and slot.phase is Phase.DONE:
                return []
            form = (header.scale, header.words, header.lanes)
            members = packet.bitmaps[self.rack]
            result = packet._replace(header=header._replace(members=members, kind=Kind.RESULT))
            self.slots[header.slot % len(self.slots)] = LeafSlot(block_id, Phase.DONE, form, result=result)
            return [self._copy(result, rank) for rank in range(self.workers)]
        if block_id == slot.block_id and slot.phase is Phase.OPEN:
            if header.kind == Kind.STALE:
                slot.phase = Phase.GONE
            else:
                return self._hear(slot, header)
        return []

    def _hear(self, slot: LeafSlot, header: KofnHeader) -> list[Packet]:
        """Learn which of the rack's contributions are in the root's sum, and in which format it is.

        If the open buffer is due now, have its latest contribution repeated, so that it leaves.
        """
        slot.confirmed = True
        slot.missing = max(header.k - header.count, 0)
        if (slot.format[0], slot.format[2]) != (header.scale, header.lanes):
            words = slot.format[1] << slot.format[2] & 255  # half as many in lanes half as wide
            slot.format = (header.scale, words >> header.lanes, header.lanes)
            slot.taken = slot.acked = header.members
            slot.open, slot.sent, slot.last = Buffer(), Buffer(), None
            return []
        slot.acked |= header.members
        slot.taken |= header.members
        for name in ("open", "sent"):
            held = getattr(slot, name).members
            if held & slot.acked:
                slot.taken &= ~(held & ~slot.acked)
                setattr(slot, name, Buffer())
        if slot.last is None or not slot.open.members or slot.sent.members or not self._due(slot):
            return []
        told, slot.last = slot.last, None
        return [Packet(told, header._replace(kind=Kind.ADDED, worker=told, rack=self.rack, words=0))]

    def _enough(self, slot: LeafSlot, own_k: int) -> bool:
        """Return whether the open buffer goes up."""
        if slot.taken & self.everyone == self.everyone or 0 < own_k <= slot.open.count:
            return True
        return self._due(slot)

    def _due(self, slot: LeafSlot) -> bool:
        """Return whether the open buffer has its share of what the root misses."""
        return self.shift > 0 and slot.open.count >= max(slot.missing >> self.shift, 1)

    def _urged(self, slot: LeafSlot, header: KofnHeader, values: bytes, mine: int) -> Packet:
        """Return the packet that a repetition sends up; `mine`: a contribution that was taken, 0: none."""
        if mine and not (slot.acked | slot.open.members | slot.sent.members) & mine:
            return Packet(ROOT, header._replace(worker=self.rack, rack=self.rack, members=mine), (), values)
        if slot.format[1] == header.words and slot.sent.members:
            return self._increment(slot, header)
        if slot.format[1] == header.words and slot.open.members:
            return self._freeze(slot, header)
        return self._ask(header)

    def _freeze(self, slot: LeafSlot, header: KofnHeader) -> Packet:
        slot.sent, slot.open, slot.last = slot.open, Buffer(), None
        return self._increment(slot, header)

    def _increment(self, slot: LeafSlot, header: KofnHeader) -> Packet:
        sent, (scale, _, lanes) = slot.sent, slot.format
        header = header._replace(
            kind=Kind.CONTRIBUTE,
            worker=self.rack,
            rack=self.rack,
            members=sent.members,
            count=sent.count,
            weight=sent.weight,
            part=0,
            scale=scale,
            lanes=lanes,
        )
        return Packet(ROOT, header, (), to_values(sent.values, lanes))

    def _ask(self, header: KofnHeader) -> Packet:
        return Packet(
            ROOT,
            header._replace(kind=Kind.PULL, worker=self.rack, rack=self.rack),
            (),
            bytes(header.words * WORD_BYTES),
        )

    def _late(self, result: Packet, header: KofnHeader) -> Packet:
        kept = result.header
        late = header._replace(
            kind=Kind.LATE,
            members=kept.members,
            count=kept.count,
            weight=kept.weight,
            k=kept.k,
            scale=kept.scale,
            lanes=kept.lanes,
            words=kept.words,
            bitmaps=kept.bitmaps,
        )
        return self._copy(Packet(ROOT, late, result.bitmaps, result.values), header.worker)

    def _copy(self, result: Packet, rank: int) -> Packet:
        """Return a result for one worker: with a recipient only that one gets the sum."""
        header = result.header._replace(worker=rank, rack=self.rack)
        if header.recipient in (EVERYONE, self.rack << 8 | rank):
            return Packet(rank, header, result.bitmaps, result.values)
        return Packet(rank, header._replace(words=0), result.bitmaps)

    def _refusal(self, slot: LeafSlot, header: KofnHeader) -> Packet:
        scale, _, lanes = slot.format
        told = header._replace(scale=scale, lanes=lanes, members=slot.taken)
        return self._reply(told, Kind.FORMAT_MISMATCH)

    def _reply(self, header: KofnHeader, kind: Kind) -> Packet:
        values = bytes(header.words * WORD_BYTES)
        return Packet(header.worker, header._replace(kind=kind, rack=self.rack), (), values)

    def _slot(self, header: KofnHeader) -> LeafSlot:
        return self.slots[header.slot % len(self.slots)]


def _id_of(header: KofnHeader) -> tuple[int, int, int]:
    return header.generation, header.iteration, header.block
