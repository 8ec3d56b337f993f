"""The arrays of a worker's ledger, in memory or in a memory-mapped file.

A mapped file belongs to the kernel: when the process is killed, all its stores up to then are in the file.  The stores
do not survive a crash of the machine.  compression/ledger.c takes care of the order of stores.
"""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kofn_common.config.compress import Residual
from kofn_common.wire.sizes import PARTS
from kofn_host import structs
from kofn_host.arrays import Integers
from kofn_host.errors import LedgerError

MAGIC = int.from_bytes(b"kofn\0bk9")

KEPT: Mapping[Residual, type[np.signedinteger[Any] | np.unsignedinteger[Any]]] = {
    "exact": np.int64,
    "bfloat16": np.uint16,
    "int8": np.int8,
}
"""The type of a pending value, by compress.residual; in the order of `enum residual` in residual.h."""

RESTORING = -1
"""The value of `begun` while a ledger takes over a checkpoint's ledgers."""

GENERATIONS = 2
"""A contribution is kept until the second iteration after it, or until all workers are known to have contributed to the
next iteration: a rejoining worker compares its results of the last two iterations with the others' results."""

RECORD = np.dtype([(name, np.int64) for name, *_ in structs.Record._fields_])
"""struct record of ledger_rows.h, with its checksums as signed numbers."""

SENT = np.dtype(structs.Sent)
"""struct sent of ledger_rows.h."""

Placed = tuple[str, Any, tuple[int, ...]]
"""An array: name, type, shape."""

Records = npt.NDArray[Any]
"""An array of RECORD or of SENT."""

JOURNAL_NUMBERS = ctypes.sizeof(structs.Journal) // 8
"""Numbers before the values in the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStorage:
    """The arrays, initially zero; B blocks of L elements, P parts (wire.packet.PARTS), G generations.

    Rows of `packed` have room for a block in the widest lanes, and take no memory before the first write.
    """

    identity: Integers  # (5,): magic, job and rank, B, L, bits of the widest lanes and of `pending`
    begun: Integers  # (1,): latest iteration, or RESTORING
    journal: Integers  # (JOURNAL_NUMBERS + L,), or (JOURNAL_NUMBERS,) if `in_place`: the next change of a block
    records: Records  # (B,)
    sent: Records  # (P, G, B)
    pending: npt.NDArray[Any]  # (B, L), of a type in KEPT
    shifts: Integers  # (B,): residuals in int8 are in steps of 2**shift
    packed: npt.NDArray[np.uint8]  # (P, G, B, bytes): contributions as on the wire, in the rows that `sent` names

    @classmethod
    def in_memory(
        cls, *, blocks: int, lanes: int, width: int = 32, residual: Residual = "exact", in_place: bool = True
    ) -> Self:
        """Return a ledger that ends with the process; `width`: bits of the widest lanes.

        `in_place`: as the property; False only in tests of a journal.
        """
        layout = list(_layout(blocks, lanes, width, residual, in_place=in_place))
        return cls._over(np.zeros(_size(layout), np.uint8), layout)

    @classmethod
    def in_file(
        cls, path: Path, *, job: int, rank: int, blocks: int, lanes: int, width: int = 32, residual: Residual = "exact"
    ) -> Self:
        """Return the ledger of this worker's earlier process, or a new one.

        LedgerError if the file holds another worker's ledger.
        """
        layout = list(_layout(blocks, lanes, width, residual, in_place=False))
        identity = [MAGIC, job << 8 | rank, blocks, lanes, width << 8 | 8 * KEPT[residual]().itemsize]
        size = _size(layout)
        try:
            with path.open("a+b") as file:
                file.seek(0)
                _check_identity(path, file.read(8 * len(identity)), identity)
                file.truncate(max(size, file.seek(0, os.SEEK_END)))
                os.posix_fallocate(file.fileno(), 0, _used(layout))  # reserve the disk's space now
                buffer = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise LedgerError(f"{path}: {error.strerror}") from error
        storage = cls._over(buffer, layout)
        storage.identity[1:] = identity[1:]
        storage.identity[0] = MAGIC
        if storage.begun[0] == RESTORING:  # the earlier process died meanwhile
            storage._clear()
        return storage

    @contextlib.contextmanager
    def restoring(self, iteration: int) -> Iterator[None]:
        """Fill the ledger in the `with` block; afterwards `iteration` is the latest one.

        LedgerError if the ledger has gradients.
        """
        if self.records["entered_weight"].any() or self.records["gradients"].any():
            raise LedgerError(
                f"a ledger must have no gradients to take over others', this one is in iteration {self.begun[0]}"
            )
        self.begun[0] = RESTORING
        yield
        self.begun[0] = iteration

    def _clear(self) -> None:
        """Make the ledger new again."""
        for array in (self.journal, self.records, self.sent, self.shifts, self.pending):
            array[:] = np.zeros((), array.dtype)
        self.begun[0] = 0

    @classmethod
    def _over(cls, buffer: npt.NDArray[np.uint8] | mmap.mmap, layout: Sequence[Placed]) -> Self:
        """Return the arrays, one after another in a buffer."""
        arrays, at = dict[str, Any](), 0
        for name, kind, shape in layout:
            array = np.frombuffer(buffer, kind, int(np.prod(shape)), at)
            arrays[name] = array.reshape(shape)
            at += array.nbytes
        return cls(**arrays)

    @property
    def residual(self) -> Residual:
        return next(name for name, kind in KEPT.items() if self.pending.dtype == kind)

    @property
    def in_place(self) -> bool:
        """Whether pending values change without the journal, so that a kill may leave a block half changed."""
        return self.journal.size == JOURNAL_NUMBERS


def _check_identity(path: Path, head: bytes, identity: list[int]) -> None:
    """Raise LedgerError if a file begins with another identity; an incompletely created file has no identity."""
    found = np.frombuffer(head.ljust(8 * len(identity), b"\0"), np.int64).tolist()
    if found == identity or not found[0]:
        return
    if found[0] != MAGIC:
        raise LedgerError(f"{path} holds no ledger of this version: remove it, or choose another place")
    raise LedgerError(
        f"{path} must hold the ledger of {_words(identity)}, got that of {_words(found)}:"
        " remove it, or choose another place"
    )


def _words(identity: list[int]) -> str:
    _, worker, blocks, lanes, bits = identity
    return (
        f"job {worker >> 8}, rank {worker & 255}, {blocks} blocks of {lanes} lanes of up to {bits >> 8} bits, residuals"
        f" of {bits & 255}"
    )


def row_bytes(lanes: int, width: int) -> int:
    """Return the bytes of a block as on the wire."""
    return -(-lanes * width // 8)


def _layout(blocks: int, lanes: int, width: int, residual: Residual, *, in_place: bool) -> Iterator[Placed]:
    """Yield every array; arrays of multi-byte elements begin at multiples of 8."""
    yield "identity", np.int64, (5,)
    yield "begun", np.int64, (1,)
    yield "journal", np.int64, (JOURNAL_NUMBERS + (0 if in_place else lanes),)
    yield "records", RECORD, (blocks,)
    yield "sent", SENT, (PARTS, GENERATIONS, blocks)
    yield "shifts", np.int64, (blocks,)
    yield "pending", KEPT[residual], (blocks, lanes)
    yield "packed", np.uint8, (PARTS, GENERATIONS, blocks, row_bytes(lanes, width))


def _size(layout: Sequence[Placed]) -> int:
    return sum(map(_bytes, layout))


def _used(layout: Sequence[Placed]) -> int:
    """Return the size without the rows of parts from 1 on, which come last."""
    return _size(layout) - _bytes(layout[-1]) // PARTS * (PARTS - 1)


def _bytes(placed: Placed) -> int:
    _, kind, shape = placed
    return int(np.prod(shape)) * np.dtype(kind).itemsize
