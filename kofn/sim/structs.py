"""The structs and enums of C headers, for ctypes. `make header` generates this file."""

import ctypes
from ctypes import c_double, c_int64


class Clock(ctypes.Structure):
    """struct clock, up to now_s."""

    now_s: float
    _fields_ = (
        ("now_s", c_double),
    )


class Link(ctypes.Structure):
    """struct link, up to bytes."""

    packets: int
    bytes: int
    _fields_ = (
        ("packets", c_int64),
        ("bytes", c_int64),
    )


class Host(ctypes.Structure):
    """struct host, up to failed."""

    attentive: int
    failed: int
    _fields_ = (
        ("attentive", c_int64),
        ("failed", c_int64),
    )
