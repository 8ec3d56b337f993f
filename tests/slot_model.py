"""The switch's slots in plain Python: docs/PROTOCOL.md's table once more, as an oracle that is obviously right.

One job; values are integers in NumPy; `handle` returns the answers as (rank, header, values).
"""

from dataclasses import dataclass, field

import numpy as np

from host.wire import EVERYONE, Flag, Header, Kind, pack_values, unpack_values

Answer = tuple[int, Header, bytes]


@dataclass
class SlotState:
    epoch: tuple[int, int, int] = (0, 0, 0)  # generation, iteration, block
    members: int = 0
    count: int = 0
    done: bool = False
    format: tuple[int, int, int] = (0, 0, 0)
    values: np.ndarray = field(default_factory=lambda: np.zeros(64, np.int64))


class SlotModel:
    def __init__(self, *, workers: int, k: int, slots: int = 4096) -> None:
        self.workers, self.k = workers, k
        self.generation = 0
        self.slots = [SlotState() for _ in range(slots)]

    def handle(self, header: Header, values: bytes) -> list[Answer]:  # noqa: PLR0911  # one return for each row of the table
        if header.generation != self.generation:
            return []
        slot = self.slots[header.slot % len(self.slots)]
        epoch, me = (header.generation, header.iteration, header.block), 1 << header.worker
        k = header.k or self.k
        if epoch < slot.epoch:
            return [self._answer(slot, header, Kind.STALE, header.worker)]
        if epoch > slot.epoch:
            if header.kind == Kind.PULL:
                return []
            lanes = unpack_values(values).astype(np.int64)
            form = (header.scale, header.words, header.lanes)
            fresh = SlotState(epoch, me, header.count, False, form, lanes)
            slot.__dict__.update(fresh.__dict__)
            return self._maybe_close(slot, header, k)
        if slot.format[1] != header.words:
            return [self._answer(slot, header._replace(flags=Flag.OTHER_WORDS), Kind.REFUSED, header.worker)]
        if slot.done:
            return [self._answer(slot, header, Kind.LATE, header.worker)]
        if header.kind == Kind.PULL:
            return []
        if not slot.members & me:
            if slot.format != (header.scale, header.words, header.lanes):
                return [self._answer(slot, header, Kind.REFUSED, header.worker)]
            slot.values = slot.values + unpack_values(values)
            slot.members |= me
            slot.count += header.count
        return self._maybe_close(slot, header, k)

    def _maybe_close(self, slot: SlotState, header: Header, k: int) -> list[Answer]:
        if slot.count < k:
            return []
        slot.done = True
        ranks = range(self.workers) if header.owner == EVERYONE else [header.owner]
        return [self._answer(slot, header._replace(k=k), Kind.RESULT, rank) for rank in ranks]

    def _answer(self, slot: SlotState, header: Header, kind: Kind, rank: int) -> Answer:
        answer = header._replace(kind=kind, worker=rank)
        if kind == Kind.STALE:
            return rank, answer, bytes(header.words * 256)
        answer = answer._replace(
            members=slot.members, count=slot.count, scale=slot.format[0], lanes=slot.format[2], k=answer.k or self.k
        )
        return rank, answer, pack_values(slot.values.astype(np.int32)) if kind != Kind.REFUSED else b"\0" * 256
