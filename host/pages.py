"""The arrays of a worker's books, in memory or in a file mapped into it.

A mapped file is the kernel's: it outlives a process that is killed at any moment, and every store up to then is in it.
It does not outlive the machine.  The order of stores is the owner's business (host.residual).
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from host.compress import Fixed
from host.errors import BooksError
from host.wire import Values

_MAGIC = int.from_bytes(b"kofn\0bk5")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Zero at first; B blocks of L elements."""

    identity: Integers  # (4,): magic, job and rank, B, L
    begun: Integers  # (1,): latest iteration
    entered: Integers  # (B,): 2 * latest iteration whose gradient is in + valid copy of `gradients`
    sent_in: Integers  # (B,): iteration in which `sent` was sent, 0: being written
    settled: Integers  # (B,): 4 * latest iteration whose result is known + 2 * was this worker in it + valid copy
    sent_scale: Integers  # (B,)
    sent_lanes: Integers  # (B,): code of the lanes in `sent`
    sent_number: Integers  # (B,): gradients in `sent`
    decided: Integers  # (B,): 2 * latest iteration of which it is settled what is discarded + valid copy of `discarded`
    gradients_number: Integers  # (2, B): how many gradients are in each copy of `gradients`
    counted_number: Integers  # (2, B)
    discarded_number: Integers  # (2, B)
    gradients: Fixed  # (2, B, L): the valid copy, and the one before, block by block
    counted: Fixed  # (2, B, L)
    discarded: Fixed  # (2, B, L)
    sent: Values  # (B, L)

    @classmethod
    def in_memory(cls, *, blocks: int, lanes: int) -> Self:
        """Books that end with the process."""
        return cls(**_arrays(bytearray(_size(blocks, lanes)), blocks, lanes))

    @classmethod
    def in_file(cls, path: Path, *, job: int, rank: int, blocks: int, lanes: int) -> Self:
        """The books of an earlier process of this worker, or new ones; BooksError when they are another worker's."""
        size, identity = _size(blocks, lanes), [_MAGIC, job << 8 | rank, blocks, lanes]
        try:
            with path.open("a+b") as file:
                file.truncate(max(size, file.tell()))
                pages = cls(**_arrays(mmap.mmap(file.fileno(), size), blocks, lanes))
        except OSError as error:
            raise BooksError(f"{path}: {error.strerror}") from error
        found = [int(number) for number in pages.identity]
        if found not in ([0, 0, 0, 0], identity):
            raise BooksError(
                f"{path} holds other books (job and rank {found[1] >> 8}, {found[1] & 255}; {found[2]} blocks of"
                f" {found[3]} lanes), not those of job {job}, rank {rank}, {blocks} blocks of {lanes} lanes:"
                " remove it, or give another place"
            )
        pages.identity[:] = identity
        for array in (pages.gradients, pages.counted, pages.sent):  # the kernel finds room now, not when it matters
            array.view(np.uint8).reshape(-1)[:: mmap.PAGESIZE] |= 0
        return pages


def _layout(blocks: int, lanes: int) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Every array: name, type, shape."""
    yield "identity", np.int64, (4,)
    yield "begun", np.int64, (1,)
    for name in ("entered", "sent_in", "settled", "sent_scale", "sent_lanes", "sent_number", "decided"):
        yield name, np.int64, (blocks,)
    for name in ("gradients_number", "counted_number", "discarded_number"):
        yield name, np.int64, (2, blocks)
    for name in ("gradients", "counted", "discarded"):
        yield name, np.int64, (2, blocks, lanes)
    yield "sent", np.int32, (blocks, lanes)


def _size(blocks: int, lanes: int) -> int:
    """Bytes of all arrays."""
    return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for _, kind, shape in _layout(blocks, lanes))


def _arrays(buffer: bytearray | mmap.mmap, blocks: int, lanes: int) -> dict[str, npt.NDArray[Any]]:
    """The arrays, one after another in the buffer."""
    arrays, at = {}, 0
    for name, kind, shape in _layout(blocks, lanes):
        array = np.frombuffer(buffer, kind, int(np.prod(shape)), at)
        arrays[name] = array.reshape(shape)
        at += array.nbytes
    return arrays
