"""The structs and enums of C headers, for ctypes. `make header` generates this file."""

import ctypes
from ctypes import c_double, c_uint16, c_uint32, c_uint64


class Count(ctypes.Structure):
    """struct count."""

    packets: int
    bytes: int
    _fields_ = (
        ("packets", c_uint64),
        ("bytes", c_uint64),
    )


class Replica(ctypes.Structure):
    """struct replica."""

    port: int
    instance: int
    _fields_ = (
        ("port", c_uint16),
        ("instance", c_uint16),
    )


class PacketTime(ctypes.Structure):
    """struct packet_time."""

    receiving: int
    processing: int
    sending: int
    _fields_ = (
        ("receiving", c_uint64),
        ("processing", c_uint64),
        ("sending", c_uint64),
    )


class FaultRule(ctypes.Structure):
    """struct fault_rule."""

    port: int
    directions: int
    drop: float
    duplicate: float
    corrupt: float
    reorder: float
    delay_ns: int
    jitter_ns: int
    from_ns: int
    until_ns: int
    first_number: int
    numbers: int
    _fields_ = (
        ("port", c_uint32),
        ("directions", c_uint32),
        ("drop", c_double),
        ("duplicate", c_double),
        ("corrupt", c_double),
        ("reorder", c_double),
        ("delay_ns", c_uint64),
        ("jitter_ns", c_uint64),
        ("from_ns", c_uint64),
        ("until_ns", c_uint64),
        ("first_number", c_uint32),
        ("numbers", c_uint32),
    )


class FaultCounts(ctypes.Structure):
    """struct fault_counts."""

    dropped: int
    duplicated: int
    corrupted: int
    delayed: int
    reordered: int
    _fields_ = (
        ("dropped", c_uint64),
        ("duplicated", c_uint64),
        ("corrupted", c_uint64),
        ("delayed", c_uint64),
        ("reordered", c_uint64),
    )
