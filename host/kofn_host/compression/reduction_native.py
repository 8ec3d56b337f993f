"""reduction.c through ctypes: an iteration that the engine's thread encodes, settles and averages."""

import ctypes
from ctypes import c_double, c_int64, c_void_p

from kofn_host.compression.codec import UNIT
from kofn_host.compression.ledger_native import Fading, Gradient
from kofn_host.stopwatch import Times


class NativeReduction(ctypes.Structure):
    """`struct reduction` in reduction.h; `keeps` holds its arrays in memory."""

    _fields_ = (
        *((name, c_void_p) for name in ("ledger", "sums", "mean")),
        *((name, c_int64) for name in ("iteration", "place", "lanes")),
        ("fading", Fading),
        ("gradient", Gradient),
        *((name, c_void_p) for name in ("scale", "left")),
        *((name, c_int64) for name in ("first", "end")),
        *((name, c_void_p) for name in ("missing", "level")),
        ("window", c_int64),
        ("last", c_void_p),
        *((name, c_int64) for name in ("lookahead", "sample_stride")),
        ("scratch", c_void_p),
        *((name, c_int64) for name in ("encoded", "looked_at")),
        *((name, c_double) for name in ("error", "encode_s", "send_s", "settle_s", "average_s")),
    )
    keeps: list[object]

    @property
    def squared_error(self) -> float:
        """The squared encoding error in units of the gradient, extrapolated from the sampled blocks."""
        return float(self.error * UNIT**2 * self.encoded / max(1, self.looked_at))

    @property
    def times(self) -> Times:
        return Times(encode=self.encode_s, send=self.send_s, receive=self.settle_s, decode=self.average_s)
