"""The slots in plain Python: the table of docs/reference/protocol.md, which slots.c and the P4 program obey.

One job; values are integers in NumPy; `handle` returns the answers as (rank, header, values).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kofn_common.wire.packet import EVERYONE, WORD_BYTES, Flag, Kind, KofnHeader, Lanes, bit_of
from kofn_common.wire.sizes import VOTE_WORDS
from kofn_host.arrays import Fixed
from kofn_host.protocol.slots import Answer


def count_words(words: int, planes: int) -> int:
    """Return the number of words in the answer to `words` words of votes."""
    return max(words, planes * min(words, VOTE_WORDS))


@dataclass(slots=True)
class SlotState:
    """One slot: its block, and the block's sum so far."""

    block_id: tuple[int, int, int] = (0, 0, 0)  # generation, iteration, block
    members: int = 0
    count: int = 0
    addends: int = 0
    weight: int = 0
    done: bool = False
    format: tuple[int, int, int] = (0, 0, 0)  # scale, words, lanes
    values: Fixed = field(default_factory=lambda: np.zeros(64, np.int64))


class SlotModel:
    """The slots of a job of `workers` workers, which sum until `k` are in or the lanes have no `room`."""

    def __init__(self, *, workers: int, k: int, slots: int = 4096) -> None:
        self.workers, self.k, self.room = workers, k, workers
        self.generation = 0
        self.slots = [SlotState() for _ in range(slots)]

    def handle(self, header: KofnHeader, values: bytes | memoryview) -> list[Answer]:  # noqa: PLR0911  # one return for each row of the table
        """Take a worker's packet, without keeping its values, and return the switch's answers, all with the same
        values.
        """
        if header.generation != self.generation:
            return []
        index = header.slot % len(self.slots)
        slot = self.slots[index]
        block_id, me = (header.generation, header.iteration, header.block), bit_of(header.worker, header.part)
        form = (header.scale, header.words, header.lanes)
        if block_id < slot.block_id:
            return [_answer(header, Kind.STALE, header.worker, bytes(header.words * WORD_BYTES))]
        if block_id > slot.block_id:
            if (
                header.kind == Kind.PULL
                or is_ahead(header, slot.block_id, len(self.slots))
                or not self._has_room(header, merged=0)
            ):
                return []
            numbers, addends = to_numbers(values, header.lanes), max(header.count, 1)
            slot = SlotState(block_id, me, header.count, addends, header.weight, False, form, numbers)
            self.slots[index] = slot
            return self._maybe_close(slot, header, values)
        if slot.format[1] != header.words:
            return [self._refusal(slot, header._replace(flags=Flag.OTHER_WORDS))]
        if slot.done:
            return self._sums(slot, header, values, Kind.LATE, [header.worker])
        if header.kind == Kind.PULL:
            return []
        if not slot.members & me:
            if slot.format != form:
                return [self._refusal(slot, header)]
            if not self._has_room(header, merged=slot.addends - slot.count):
                return []
            slot.values = slot.values + to_numbers(values, header.lanes)
            slot.members |= me
            slot.count += header.count
            slot.addends += max(header.count, 1)
            slot.weight += header.weight
        return self._maybe_close(slot, header, values)

    def _has_room(self, header: KofnHeader, *, merged: int) -> bool:
        """Return whether k counted contributions still fit the sum beside `merged` uncounted ones."""
        return header.count > 0 or merged + (header.k or self.k) < self.room

    def _maybe_close(self, slot: SlotState, header: KofnHeader, values: bytes | memoryview) -> list[Answer]:
        k = header.k or self.k
        if slot.count < k and slot.addends < self.room:
            return []
        slot.done = True
        return self._sums(slot, header._replace(k=k), values, Kind.RESULT, range(self.workers))

    def _sums(
        self, slot: SlotState, header: KofnHeader, values: bytes | memoryview, kind: Kind, ranks: Iterable[int]
    ) -> list[Answer]:
        """Return a closed slot's sum for each of these ranks; with a recipient only that rank gets values."""
        state, lanes = self._state(slot, header), slot.format[2]
        planes = self.room.bit_length() if lanes == Lanes.VOTES else 1
        if lanes == Lanes.VOTES:
            sums = self._counts(slot) + bytes(values[planes * min(header.words, VOTE_WORDS) * WORD_BYTES :])
        else:
            sums = to_values(slot.values, lanes)
        whole = state._replace(words=count_words(header.words, planes))
        short = state._replace(words=0)
        return [
            _answer(whole, kind, rank, sums)
            if header.recipient in (EVERYONE, rank)
            else _answer(short, kind, rank, b"")
            for rank in ranks
        ]

    def _counts(self, slot: SlotState) -> bytes:
        """Return the counts as bit planes, for counts up to the room."""
        shifts = np.arange(self.room.bit_length())[:, None]
        return np.packbits(slot.values >> shifts & 1).tobytes()

    def _refusal(self, slot: SlotState, header: KofnHeader) -> Answer:
        return _answer(self._state(slot, header), Kind.FORMAT_MISMATCH, header.worker, bytes(header.words * WORD_BYTES))

    def _state(self, slot: SlotState, header: KofnHeader) -> KofnHeader:
        """Return a header with the slot's state."""
        scale, _, lanes = slot.format
        return header._replace(
            members=slot.members,
            count=slot.count,
            weight=slot.weight,
            scale=scale,
            lanes=lanes,
            k=header.k or self.k,
        )


def _answer(header: KofnHeader, kind: Kind, rank: int, values: bytes) -> Answer:
    return rank, header._replace(kind=kind, worker=rank), values


def is_ahead(header: KofnHeader, block_id: tuple[int, int, int], slots: int) -> bool:
    """Return whether the packet's iteration is further ahead of its slot's than any worker can be."""
    generation, iteration, _ = block_id
    return header.generation == generation and 0 < iteration < header.iteration - slots


def to_numbers(values: bytes | memoryview, lanes: int) -> Fixed:
    """Return a packet's lanes of this code as signed numbers; votes become 0 and 1."""
    if lanes == Lanes.VOTES:
        return np.unpackbits(np.frombuffer(values[: VOTE_WORDS * WORD_BYTES], np.uint8)).astype(np.int64)
    if lanes == Lanes.BITS_4:
        octets = np.frombuffer(values, np.int8)
        return np.stack((octets >> 4, octets << 4 >> 4), axis=-1).ravel().astype(np.int64)
    return np.frombuffer(values, f">i{4 >> lanes}").astype(np.int64)


def to_values(numbers: Fixed, lanes: int) -> bytes:
    """Return numbers as lanes of this code; overflow is cut off, so unsigned lanes are summed like signed ones."""
    if lanes == Lanes.BITS_4:
        pairs = numbers.reshape(-1, 2) & 15
        return (pairs[:, 0] << 4 | pairs[:, 1]).astype(np.uint8).tobytes()
    return numbers.astype(f">i{4 >> lanes}").tobytes()
