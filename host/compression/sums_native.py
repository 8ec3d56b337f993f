"""sums.c through ctypes."""

import ctypes
from ctypes import c_double, c_int64, c_void_p
from functools import cache

from kofn.host.errors import LedgerError
from kofn.host.kernels.lanes import WIDTHS
from kofn.host.native import compiled
from kofn.nativebuild.errors import BuildError
from kofn.nativebuild.library import Signatures, load_library


class NativeSums(ctypes.Structure):
    """As `struct sums` in sums.h."""

    _fields_ = (
        ("lanes", c_int64),
        ("elements", c_int64),
        ("most", c_int64 * len(WIDTHS)),
        ("gap", c_void_p),
        ("unit", c_double),
        *((name, c_void_p) for name in ("factors", "checksums", "closed_s", "closed")),
    )


SIGNATURES: Signatures = {"sums_take": (c_int64, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p])}


@cache
def library() -> ctypes.CDLL:
    """Compiled when it is not in the cache; LedgerError where it cannot be had."""
    try:
        return load_library(compiled(), SIGNATURES)
    except (BuildError, OSError) as error:
        raise LedgerError(f"a worker's sums are native code: {error}") from error
