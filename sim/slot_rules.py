"""The switch's slots in plain Python: docs/PROTOCOL.md's table once more, as an oracle that is obviously right.

One job; values are integers in NumPy; `handle` returns the answers as (rank, header, values).
"""

from dataclasses import dataclass, field

import numpy as np

from host.compress import Fixed
from host.lanes import pack, unpack
from host.wire import EVERYONE, WORD_BYTES, Flag, Header, Kind

Answer = tuple[int, Header, bytes]


@dataclass(slots=True)
class SlotState:
    """One slot: whose block is in it, and how far that is."""

    epoch: tuple[int, int, int] = (0, 0, 0)  # generation, iteration, block
    members: int = 0
    count: int = 0
    gradients: int = 0
    done: bool = False
    format: tuple[int, int, int] = (0, 0, 0)  # scale, words, lanes
    values: Fixed = field(default_factory=lambda: np.zeros(64, np.int64))


class SlotRules:
    """The slots of a job of `workers` workers, summing until `k` are in."""

    def __init__(self, *, workers: int, k: int, slots: int = 4096) -> None:
        self.workers, self.k = workers, k
        self.generation = 0
        self.slots = [SlotState() for _ in range(slots)]

    def handle(self, header: Header, values: bytes) -> list[Answer]:  # noqa: PLR0911  # one return for each row of the table
        """Take a packet of a worker; what the switch sends."""
        if header.generation != self.generation:
            return []
        index = header.slot % len(self.slots)
        slot = self.slots[index]
        epoch, me = (header.generation, header.iteration, header.block), 1 << header.worker
        form = (header.scale, header.words, header.lanes)
        if epoch < slot.epoch:
            return [_answer(header, Kind.STALE, header.worker, bytes(header.words * WORD_BYTES))]
        if epoch > slot.epoch:
            if header.kind == Kind.PULL:
                return []
            slot = self.slots[index] = SlotState(
                epoch, me, header.count, header.gradients, False, form, _numbers(values)
            )
            return self._maybe_close(slot, header)
        if slot.format[1] != header.words:
            return [self._refusal(slot, header._replace(flags=Flag.OTHER_WORDS))]
        if slot.done:
            return [_answer(self._state(slot, header), Kind.LATE, header.worker, _packed(slot))]
        if header.kind == Kind.PULL:
            return []
        if not slot.members & me:
            if slot.format != form:
                return [self._refusal(slot, header)]
            slot.values = slot.values + _numbers(values)
            slot.members |= me
            slot.count += header.count
            slot.gradients += header.gradients
        return self._maybe_close(slot, header)

    def _maybe_close(self, slot: SlotState, header: Header) -> list[Answer]:
        k = header.k or self.k
        if slot.count < k:
            return []
        slot.done = True
        ranks = range(self.workers) if header.owner == EVERYONE else [header.owner]
        state, values = self._state(slot, header._replace(k=k)), _packed(slot)
        return [_answer(state, Kind.RESULT, rank, values) for rank in ranks]

    def _refusal(self, slot: SlotState, header: Header) -> Answer:
        return _answer(self._state(slot, header), Kind.REFUSED, header.worker, bytes(header.words * WORD_BYTES))

    def _state(self, slot: SlotState, header: Header) -> Header:
        """A header that says what is in the slot."""
        scale, _, lanes = slot.format
        return header._replace(
            members=slot.members,
            count=slot.count,
            gradients=slot.gradients,
            scale=scale,
            lanes=lanes,
            k=header.k or self.k,
        )


def _answer(header: Header, kind: Kind, rank: int, values: bytes) -> Answer:
    return rank, header._replace(kind=kind, worker=rank), values


def _numbers(values: bytes) -> Fixed:
    return unpack(values, 32).astype(np.int64)


def _packed(slot: SlotState) -> bytes:
    return pack(slot.values.astype(np.int32), 32)
