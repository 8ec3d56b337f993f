"""ledger.c through ctypes."""

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_int, c_int64, c_void_p
from functools import cache
from typing import Self

import numpy as np

from kofn_common.nativebuild.library import Signatures, load_library
from kofn_common.wire.packet import WIDTHS
from kofn_common.wire.sizes import PARTS
from kofn_host import structs
from kofn_host.arrays import Fixed, Floats, Integers
from kofn_host.compression.ledger_storage import KEPT, LedgerStorage
from kofn_host.kernels.kernel import Weights
from kofn_host.kernels.lanes import CODES
from kofn_host.native import compiled, required


class Gradient(structs.Gradient):
    """A gradient that is entered block by block; `keeps` holds its values in memory."""

    keeps: Floats

    @classmethod
    def of(cls, values: Floats, iteration: int, *, batch: int = 0, current: int | None = None) -> Self:
        """Return a checked gradient (compression.codec.check), which must not change until it is in a ledger.

        Shape (elements,) with elements <= blocks * lanes.  The gradient was begun in `iteration`, as the worker's
        `batch`-th gradient (0 to PARTS - 1) in that iteration; `current`: the current iteration (None: `iteration`).
        """
        values, now = np.ascontiguousarray(values, np.float32), iteration if current is None else current
        found = cls(values.ctypes.data, values.size, iteration * PARTS + batch, now)
        found.keeps = values
        return found


class View(structs.Ledger):
    """The addresses of a ledger's arrays; `keeps` holds the arrays that are in no storage."""

    keeps: tuple[Fixed, Weights]


BLOCKS = [c_void_p, c_int64]
"""Block numbers, and their count."""

SIGNATURES: Signatures = {
    "ledger_factors": (None, [c_void_p, c_int64]),
    "ledger_checksums": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p]),
    "ledger_open": (None, [c_void_p]),
    "ledger_add": (None, [c_void_p, POINTER(Gradient), *BLOCKS]),
    "ledger_look": (None, [c_void_p, POINTER(Gradient), c_void_p, c_void_p, c_void_p]),
    "ledger_send": (None, [c_void_p, POINTER(Gradient), c_int64, c_int, c_int, *BLOCKS, c_void_p]),
    "ledger_note": (None, [c_void_p, c_int64, c_int, c_int, *BLOCKS, c_void_p, c_void_p, c_int64]),
    "ledger_pending": (None, [c_void_p, *BLOCKS, c_void_p]),
    "ledger_left_over": (None, [c_void_p, c_int64, *BLOCKS, c_void_p]),
    "ledger_noted": (c_int64, [c_void_p, c_int, *BLOCKS, c_void_p]),
    "ledger_withdraw": (None, [c_void_p, c_int64, c_int, *BLOCKS]),
    "ledger_settle": (c_int64, [c_void_p, c_int64, c_void_p, c_void_p, c_int64, structs.Fading, c_void_p]),
    "ledger_take_back": (None, [c_void_p, c_int64, c_int64, c_int, c_void_p]),
    "ledger_take_over": (None, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
}


@cache
def library() -> ctypes.CDLL:
    """Return the library, compiled if the cache lacks it; LedgerError if it is unavailable."""
    with required("a worker's ledger is"):
        return load_library(compiled(), SIGNATURES)


def view_of(storage: LedgerStorage, most: Mapping[int, int]) -> View:
    """Return the addresses of a storage that outlives the view; `most`: the largest lane of each code, 0 for votes."""
    blocks, lanes = storage.pending.shape
    arrays = storage.journal, storage.records, storage.sent, storage.pending, storage.shifts, storage.packed
    places = (array.ctypes.data for array in arrays)
    limits = (c_int64 * len(WIDTHS))(*(most.get(code, 0) for code in CODES))
    values, kind = np.empty(lanes, np.int64), list(KEPT).index(storage.residual)
    factors = factors_of(lanes)  # kept in the view: threads that ask at once for the first time get different arrays
    view = View(
        blocks,
        lanes,
        storage.packed.shape[-1],
        limits,
        factors.ctypes.data,
        *places,
        values.ctypes.data,
        kind,
        storage.in_place,
        None,
    )
    view.keeps = values, factors
    return view


def checksums(values: Fixed) -> Integers:
    """Return the sum of each block's values (B, L) times fixed odd factors, modulo 2**64, shape (B,).

    The checksum is linear.  A change of one value always changes the checksum.  A change of several values leaves the
    checksum the same with probability 2**-(63 - b), if 2**b divides all differences.
    """
    values = np.ascontiguousarray(values, np.int64)
    sums = np.empty(len(values), np.int64)
    library().ledger_checksums(
        factors_of(values.shape[1]).ctypes.data, values.ctypes.data, *values.shape, sums.ctypes.data
    )
    return sums


@cache
def factors_of(lanes: int) -> Weights:
    """Return the checksum's factors of a block's values."""
    factors = np.empty(lanes, np.uint64)
    library().ledger_factors(factors.ctypes.data, lanes)
    return factors
