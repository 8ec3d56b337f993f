"""sums.c through ctypes."""

import ctypes
from ctypes import c_int64, c_void_p
from functools import cache

import numpy as np

from kofn_common.nativebuild.library import Signatures, load_library
from kofn_host.arrays import Floats64
from kofn_host.native import compiled, required
from kofn_host.protocol.results import BlockResults

SIGNATURES: Signatures = {
    "sums_take": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
    "sums_largest": (None, [c_void_p, c_int64, c_void_p]),
}


def largest_of(results: BlockResults) -> Floats64:
    """Return the largest magnitude of each result's mean addend (results,), in the gradient's units.

    The magnitude is 0 if the lanes do not have 32 bits.  The result is bit-identical on every worker with the same
    results.
    """
    table, lanes = np.ascontiguousarray(results.table), np.empty(len(results), np.int64)
    library().sums_largest(table.ctypes.data, len(table), lanes.ctypes.data)
    found: Floats64 = np.ldexp(lanes / np.maximum(results.addends, 1), -table["scale"])
    return found


@cache
def library() -> ctypes.CDLL:
    """Return the library, compiled if the cache lacks it; LedgerError if it is unavailable."""
    with required("a worker's sums are"):
        return load_library(compiled(), SIGNATURES)
