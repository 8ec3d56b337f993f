"""The arrays of a worker's ledger, in memory or in a file mapped into it.

A mapped file is the kernel's: it outlives a process that is killed at any moment, and every store up to then is in it.
It does not outlive the machine.  The order of stores is the owner's business (compression.ledger).
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Fixed, Integers, Values
from kofn.host.errors import LedgerError
from kofn.host.wire.packet import PARTS

_MAGIC = int.from_bytes(b"kofn\0bk6")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStorage:
    """Zero at first; B blocks of L elements, P parts (wire.packet.PARTS).

    `entered` and `settled` are the two marks of a block.  Each is one 64-bit number: one store changes all of it.  The
    valid copy of `discarded` is the exclusive or of their two bits for it: either mark can switch it.
    """

    identity: Integers  # (4,): magic, job and rank, B, L
    begun: Integers  # (1,): latest iteration
    entered: Integers  # (B,): 4 * key of the latest gradient (ledger.py) + 2 * bit for `discarded` + valid `gradients`
    settled: Integers  # (B,): 64 * latest iteration whose result is known + 4 * this worker's parts in it
    #                    + 2 * bit for `discarded` + valid copy of `aggregated`
    oldest: Integers  # (B,): the iteration in which the oldest gradient that waits was begun, where one waits
    #                   that no part brings which is on its way
    sent_in: Integers  # (P, B): iteration in which `sent` was sent, 0: being written
    sent_scale: Integers  # (P, B)
    sent_lanes: Integers  # (P, B): code of the lanes in `sent`
    sent_weight: Integers  # (P, B): weight of the gradients in `sent`, as all weights in 1 / WEIGHT_UNIT
    sent_oldest: Integers  # (P, B): the iteration in which the oldest of them was begun, where there are any
    gradients_weight: Integers  # (2, B): of the gradients in each copy of `gradients`
    aggregated_weight: Integers  # (2, B)
    discarded_weight: Integers  # (2, B)
    gradients: Fixed  # (2, B, L): the valid copy, and the one before, block by block
    aggregated: Fixed  # (2, B, L)
    discarded: Fixed  # (2, B, L)
    sent: Values  # (P, B, L)

    @classmethod
    def in_memory(cls, *, blocks: int, lanes: int) -> Self:
        """Ledger that end with the process."""
        return cls(**_arrays(bytearray(_size(blocks, lanes)), blocks, lanes))

    @classmethod
    def in_file(cls, path: Path, *, job: int, rank: int, blocks: int, lanes: int) -> Self:
        """The ledger of an earlier process of this worker, or new ones; LedgerError when they are another worker's."""
        size, identity = _size(blocks, lanes), [_MAGIC, job << 8 | rank, blocks, lanes]
        try:
            with path.open("a+b") as file:
                file.truncate(max(size, file.tell()))
                storage = cls(**_arrays(mmap.mmap(file.fileno(), size), blocks, lanes))
        except OSError as error:
            raise LedgerError(f"{path}: {error.strerror}") from error
        found = [int(number) for number in storage.identity]
        if found not in ([0, 0, 0, 0], identity):
            raise LedgerError(
                f"{path} holds another ledger (job and rank {found[1] >> 8}, {found[1] & 255}; {found[2]} blocks of"
                f" {found[3]} lanes), not those of job {job}, rank {rank}, {blocks} blocks of {lanes} lanes:"
                " remove it, or give another place"
            )
        storage.identity[:] = identity
        for array in (
            storage.gradients,
            storage.aggregated,
            storage.sent[0],
        ):  # the kernel finds room now, not when it matters
            array.view(np.uint8).reshape(-1)[:: mmap.PAGESIZE] |= 0
        return storage


def _layout(blocks: int, lanes: int) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Every array: name, type, shape."""
    yield "identity", np.int64, (4,)
    yield "begun", np.int64, (1,)
    for name in ("entered", "settled", "oldest"):
        yield name, np.int64, (blocks,)
    for name in ("sent_in", "sent_scale", "sent_lanes", "sent_weight", "sent_oldest"):
        yield name, np.int64, (PARTS, blocks)
    for name in ("gradients_weight", "aggregated_weight", "discarded_weight"):
        yield name, np.int64, (2, blocks)
    for name in ("gradients", "aggregated", "discarded"):
        yield name, np.int64, (2, blocks, lanes)
    yield "sent", np.int32, (PARTS, blocks, lanes)


def _size(blocks: int, lanes: int) -> int:
    return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for _, kind, shape in _layout(blocks, lanes))


def _arrays(buffer: bytearray | mmap.mmap, blocks: int, lanes: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays, one after another in the buffer."""
    arrays, at = {}, 0
    for name, kind, shape in _layout(blocks, lanes):
        array = np.frombuffer(buffer, kind, int(np.prod(shape)), at)
        arrays[name] = array.reshape(shape)
        at += array.nbytes
    return arrays
