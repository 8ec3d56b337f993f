"""The structs and enums of C headers, for ctypes. `make header` generates this file."""

import ctypes
from ctypes import c_double, c_int16, c_int32, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from enum import IntEnum
from typing import Any


class InstructionKind(IntEnum):
    """enum instruction_kind."""

    SEND = 0
    DELIVER = 1
    COMPLETE = 2
    ENCODE_AGAIN = 3
    ASK_PEERS = 4


class Core(ctypes.Structure):
    """struct core, up to given."""

    iteration: int
    newest: int
    generation: int
    regrouping: int
    follows: int
    k: int
    count: int
    open_count: int
    waiting_count: int
    instructions_count: int
    urgent_count: int
    given: int
    _fields_ = (
        ("iteration", c_int64),
        ("newest", c_int64),
        ("generation", c_int64),
        ("regrouping", c_int64),
        ("follows", c_int64),
        ("k", c_int64),
        ("count", c_int64),
        ("open_count", c_int64),
        ("waiting_count", c_int64),
        ("instructions_count", c_int64),
        ("urgent_count", c_int64),
        ("given", c_int64),
    )


class SlotQuery(ctypes.Structure):
    """struct slot_query, up to members."""

    asked: int
    answered: int
    block: int
    members: ctypes.Array[c_uint64]
    _fields_ = (
        ("asked", c_int32),
        ("answered", c_int32),
        ("block", c_int64),
        ("members", c_uint64 * 4),
    )


class Slots(ctypes.Structure):
    """struct slots, up to generation."""

    workers: int
    k: int
    room: int
    generation: int
    _fields_ = (
        ("workers", c_int32),
        ("k", c_int32),
        ("room", c_int32),
        ("generation", c_uint32),
    )


class Leaf(ctypes.Structure):
    """struct leaf, up to generation."""

    rack: int
    workers: int
    k: int
    shift: int
    generation: int
    _fields_ = (
        ("rack", c_int32),
        ("workers", c_int32),
        ("k", c_int32),
        ("shift", c_int32),
        ("generation", c_uint32),
    )


class CorePlaces(ctypes.Structure):
    """struct core_places."""

    blocks: Any
    open: Any
    waiting: Any
    statistics: Any
    query: Any
    _fields_ = (
        ("blocks", c_void_p),
        ("open", c_void_p),
        ("waiting", c_void_p),
        ("statistics", c_void_p),
        ("query", c_void_p),
    )


class Instruction(ctypes.Structure):
    """struct instruction."""

    kind: int
    part: int
    counts: int
    scale: int
    lanes: int
    hint: int
    stale_in: int
    iteration: int
    block: int
    time_s: float
    launch: int
    size: int
    values: Any
    header: ctypes.Array[c_uint8]
    _fields_ = (
        ("kind", c_int32),
        ("part", c_int32),
        ("counts", c_int32),
        ("scale", c_int32),
        ("lanes", c_int32),
        ("hint", c_int32),
        ("stale_in", c_int64),
        ("iteration", c_int64),
        ("block", c_int64),
        ("time_s", c_double),
        ("launch", c_int64),
        ("size", c_int64),
        ("values", c_void_p),
        ("header", c_uint8 * 68),
    )


class Packed(ctypes.Structure):
    """struct packed."""

    values: Any
    size: int
    block: int
    scale: int
    lanes: int
    weight: int
    _fields_ = (
        ("values", c_void_p),
        ("size", c_int32),
        ("block", c_int32),
        ("scale", c_int32),
        ("lanes", c_int32),
        ("weight", c_uint32),
    )


class Result(ctypes.Structure):
    """struct result."""

    values: Any
    size: int
    scale: int
    lanes: int
    k: int
    count: int
    weight: int
    members: ctypes.Array[c_uint64]
    _fields_ = (
        ("values", c_void_p),
        ("size", c_int32),
        ("scale", c_int32),
        ("lanes", c_int32),
        ("k", c_int32),
        ("count", c_int32),
        ("weight", c_uint32),
        ("members", c_uint64 * 19),
    )


class Statistics(ctypes.Structure):
    """struct statistics."""

    retransmissions: int
    pulls: int
    stale: int
    refused: int
    foreign: int
    other_generation: int
    regroups: int
    wire_bytes: int
    _fields_ = (
        ("retransmissions", c_int64),
        ("pulls", c_int64),
        ("stale", c_int64),
        ("refused", c_int64),
        ("foreign", c_int64),
        ("other_generation", c_int64),
        ("regroups", c_int64),
        ("wire_bytes", c_int64),
    )


class Waiting(ctypes.Structure):
    """struct waiting."""

    values: Any
    size: int
    scale: int
    lanes: int
    flags: int
    counts: int
    weight: int
    _fields_ = (
        ("values", c_void_p),
        ("size", c_int32),
        ("scale", c_int32),
        ("lanes", c_int32),
        ("flags", c_int32),
        ("counts", c_int32),
        ("weight", c_uint32),
    )


class Ledger(ctypes.Structure):
    """struct ledger."""

    blocks: int
    lanes: int
    room: int
    most: ctypes.Array[c_int64]
    factors: Any
    journal: Any
    records: Any
    sent: Any
    pending: Any
    shifts: Any
    packed: Any
    values: Any
    residual: int
    in_place: int
    core: Any
    lost: float
    busy: int
    _fields_ = (
        ("blocks", c_int64),
        ("lanes", c_int64),
        ("room", c_int64),
        ("most", c_int64 * 5),
        ("factors", c_void_p),
        ("journal", c_void_p),
        ("records", c_void_p),
        ("sent", c_void_p),
        ("pending", c_void_p),
        ("shifts", c_void_p),
        ("packed", c_void_p),
        ("values", c_void_p),
        ("residual", c_int64),
        ("in_place", c_int64),
        ("core", c_void_p),
        ("lost", c_double),
        ("busy", c_int64),
    )


class Record(ctypes.Structure):
    """struct record."""

    entered: int
    settled: int
    late: int
    entered_weight: int
    aggregated_weight: int
    discarded_weight: int
    gradients: int
    aggregated: int
    discarded: int
    _fields_ = (
        ("entered", c_int64),
        ("settled", c_int64),
        ("late", c_int64),
        ("entered_weight", c_int64),
        ("aggregated_weight", c_int64),
        ("discarded_weight", c_int64),
        ("gradients", c_uint64),
        ("aggregated", c_uint64),
        ("discarded", c_uint64),
    )


class Sent(ctypes.Structure):
    """struct sent."""

    iteration: int
    weight: int
    late: int
    scale: int
    lanes: int
    row: int
    _fields_ = (
        ("iteration", c_int64),
        ("weight", c_int64),
        ("late", c_int64),
        ("scale", c_int32),
        ("lanes", c_int16),
        ("row", c_int16),
    )


class Journal(ctypes.Structure):
    """struct journal."""

    committed: int
    moved: int
    withdrawn: int
    record: Record
    values: ctypes.Array[c_int64]
    _fields_ = (
        ("committed", c_int64),
        ("moved", c_int64),
        ("withdrawn", c_int64),
        ("record", Record),
        ("values", c_int64 * 0),
    )


class Sums(ctypes.Structure):
    """struct sums."""

    lanes: int
    elements: int
    most: ctypes.Array[c_int64]
    gap: Any
    unit: float
    factors: Any
    checksums: Any
    closed_s: Any
    closed: Any
    _fields_ = (
        ("lanes", c_int64),
        ("elements", c_int64),
        ("most", c_int64 * 5),
        ("gap", c_void_p),
        ("unit", c_double),
        ("factors", c_void_p),
        ("checksums", c_void_p),
        ("closed_s", c_void_p),
        ("closed", c_void_p),
    )


class Gradient(ctypes.Structure):
    """struct gradient."""

    values: Any
    size: int
    key: int
    now: int
    open_share: int
    closed_share: int
    begun: int
    _fields_ = (
        ("values", c_void_p),
        ("size", c_int64),
        ("key", c_int64),
        ("now", c_int64),
        ("open_share", c_int64),
        ("closed_share", c_int64),
        ("begun", c_int64),
    )


class Fading(ctypes.Structure):
    """struct fading."""

    share: int
    limit: int
    feedback: int
    _fields_ = (
        ("share", c_int64),
        ("limit", c_int64),
        ("feedback", c_int64),
    )


class Reduction(ctypes.Structure):
    """struct reduction."""

    ledger: Any
    sums: Any
    mean: Any
    iteration: int
    place: int
    lanes: int
    fading: Fading
    gradient: Gradient
    scale: Any
    left: Any
    first: int
    end: int
    missing: Any
    level: Any
    window: int
    last: Any
    lookahead: int
    sample_stride: int
    scratch: Any
    encoded: int
    looked_at: int
    error: float
    encode_s: float
    send_s: float
    settle_s: float
    average_s: float
    _fields_ = (
        ("ledger", c_void_p),
        ("sums", c_void_p),
        ("mean", c_void_p),
        ("iteration", c_int64),
        ("place", c_int64),
        ("lanes", c_int64),
        ("fading", Fading),
        ("gradient", Gradient),
        ("scale", c_void_p),
        ("left", c_void_p),
        ("first", c_int64),
        ("end", c_int64),
        ("missing", c_void_p),
        ("level", c_void_p),
        ("window", c_int64),
        ("last", c_void_p),
        ("lookahead", c_int64),
        ("sample_stride", c_int64),
        ("scratch", c_void_p),
        ("encoded", c_int64),
        ("looked_at", c_int64),
        ("error", c_double),
        ("encode_s", c_double),
        ("send_s", c_double),
        ("settle_s", c_double),
        ("average_s", c_double),
    )


class Pacer(ctypes.Structure):
    """struct pacer."""

    byte_s: float
    burst_s: float
    late_s: float
    full_s: float
    rings_s: float
    queue: Any
    first: int
    count: int
    capacity: int
    queued_bytes: int
    left_bytes: int
    _fields_ = (
        ("byte_s", c_double),
        ("burst_s", c_double),
        ("late_s", c_double),
        ("full_s", c_double),
        ("rings_s", c_double),
        ("queue", c_void_p),
        ("first", c_int64),
        ("count", c_int64),
        ("capacity", c_int64),
        ("queued_bytes", c_int64),
        ("left_bytes", c_int64),
    )


class Traffic(ctypes.Structure):
    """struct traffic."""

    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int
    send_failures: int
    short_packets: int
    other_version: int
    wrong_length: int
    damaged: int
    _fields_ = (
        ("bytes_sent", c_int64),
        ("bytes_received", c_int64),
        ("packets_sent", c_int64),
        ("packets_received", c_int64),
        ("send_failures", c_int64),
        ("short_packets", c_int64),
        ("other_version", c_int64),
        ("wrong_length", c_int64),
        ("damaged", c_int64),
    )
