"""The runtime's functions through ctypes: argument types in one table, buffers in and out."""

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from kofn_common.nativebuild.library import Signatures, load_library
from kofn_switch import structs
from kofn_switch.compiler.build import compile_runtime

DROPS = (
    "no program",
    "ingress",
    "egress",
    "unknown port",
    "unknown group",
    "received too long",
    "sent too long",
    "send queue full",
    "send failed",
    "digest ring full",
    "packet-in ring full",
    "assertion failed",
    "delay queue full",
    "copy queue full",
    "too many passes",
    "priority",
    "log ring full",
    "queue full",
)  # enum drop_reason of runtime/program.h, in its order
DROP_NAMES = (c_char_p * len(DROPS))(*(name.encode() for name in DROPS))
TAKE_BYTES = 1 << 18  # bytes of records taken at once; many packets fit
INJECT_BYTES = 1 << 22  # all outputs of one injected packet; as many bytes as a ring holds


PORT_DOWN = ctypes.CFUNCTYPE(None, c_uint32)  # called by the packet thread
Limbs = POINTER(c_uint64)
Words: TypeAlias = "ctypes.Array[c_uint32]"
SIGNATURES: Signatures = {
    "core_new": (c_void_p, [c_int, c_int, c_int, c_int, PORT_DOWN]),
    "core_free": (None, [c_void_p]),
    "core_swap": (c_void_p, [c_void_p, c_void_p]),
    "core_open_port": (c_int, [c_void_p, c_uint32, c_char_p]),
    "core_open_file": (c_int, [c_void_p, c_uint32, c_char_p]),
    "core_capture": (c_int, [c_void_p, c_uint32, c_uint32, c_char_p]),
    "core_capture_error": (c_int, [c_void_p, c_uint32, c_uint32]),
    "core_receive": (None, [c_void_p, c_uint32, c_char_p, c_uint32]),
    "core_trace": (c_int, [c_void_p, c_int, c_uint64, c_uint32, POINTER(c_char_p)]),
    "core_open_queues": (c_int, [c_void_p, c_uint32]),
    "core_set_queue": (None, [c_void_p, c_int, c_int, c_int64, c_int64]),
    "core_share_counts": (c_int, [c_void_p, c_char_p]),
    "core_close_ports": (None, [c_void_p]),
    "core_start": (c_int, [c_void_p]),
    "core_stop": (None, [c_void_p]),
    "core_set_group": (c_int, [c_void_p, c_uint32, POINTER(structs.Replica), c_uint32]),
    "core_set_session": (c_int, [c_void_p, *[c_uint32] * 3, POINTER(structs.Replica), c_uint32]),
    "core_packet_out": (None, [c_void_p, c_char_p, c_uint32]),
    "core_inject": (c_int64, [c_void_p, c_uint32, c_char_p, c_uint32, c_void_p, c_uint64]),
    "core_take_digests": (c_int64, [c_void_p, c_void_p, c_uint64, c_int]),
    "core_take_reports": (c_int64, [c_void_p, c_void_p, c_uint64, c_int]),
    "core_take_packet_ins": (c_int64, [c_void_p, c_void_p, c_uint64, c_int]),
    "core_stats": (None, [c_void_p, c_uint32, Limbs, Limbs]),
    "core_packet_time": (None, [c_void_p, POINTER(structs.PacketTime)]),
    "core_set_faults": (
        c_int,
        [c_void_p, POINTER(structs.FaultRule), c_uint32, POINTER(c_uint32), c_uint32, c_uint64, c_uint32],
    ),
    "core_fault_counts": (None, [c_void_p, c_uint32, c_uint32, POINTER(structs.FaultCounts)]),
    "core_read": (None, [c_void_p, c_void_p, c_void_p, c_uint64]),
    "core_write": (None, [c_void_p, c_void_p, c_void_p, c_uint64]),
    "instance_new": (c_void_p, [c_void_p]),
    "instance_free": (None, [c_void_p]),
    "table_find": (c_int64, [c_void_p, c_uint32, Limbs, Limbs, c_uint64]),
    "table_insert": (c_int64, [c_void_p, c_void_p, c_uint32, Limbs, Limbs, c_uint64, c_uint32, Limbs]),
    "table_modify": (None, [c_void_p, c_void_p, *[c_uint32] * 3, Limbs]),
    "table_delete": (None, [c_void_p, c_void_p, *[c_uint32] * 2, Limbs]),
    "table_used": (c_uint32, [c_void_p, c_uint32]),
    "table_next": (c_int64, [c_void_p, c_uint32, c_uint32]),
    "table_read": (None, [c_void_p, c_uint32, c_uint32, Limbs]),
    "write_plain": (c_uint64, [c_void_p, c_void_p, POINTER(c_uint32), c_char_p, c_uint64, Limbs]),
    "table_set_miss": (None, [c_void_p, c_void_p, *[c_uint32] * 2, Limbs]),
    "table_extra": (c_void_p, [c_void_p, c_uint32, c_uint32]),
    "table_count": (c_void_p, [c_void_p, c_uint32, c_uint32]),
    "miss_count": (c_void_p, [c_void_p, c_uint32]),
    "counter_cell": (c_void_p, [c_void_p, c_uint32, c_uint32]),
    "meter_cell": (c_void_p, [c_void_p, c_uint32, c_uint32]),
    "meter_set": (None, [c_void_p, c_void_p, Limbs]),
    "core_now_us": (c_uint64, [c_void_p]),
    "profile_set_member": (c_int, [c_void_p, c_void_p, *[c_uint32] * 3, Limbs]),
    "profile_set_group": (c_int, [c_void_p, c_void_p, *[c_uint32] * 2, POINTER(c_uint32), c_uint32]),
    "value_set_replace": (c_int, [c_void_p, c_void_p, c_uint32, Limbs, c_uint32]),
    "register_cell": (c_void_p, [c_void_p, c_uint32, c_uint32]),
}


@cache
def runtime() -> ctypes.CDLL:
    """Return the loaded runtime, which is compiled if the cache lacks it. Raise CompilerMissing, CompileError."""
    return load_library(compile_runtime(), SIGNATURES)


@cache
def load_program(path: Path) -> int:
    """Return the address of the `struct program` in a compiled program's library, which stays loaded."""
    return ctypes.addressof(ctypes.c_byte.in_dll(ctypes.CDLL(str(path)), "kofn_program"))


def limbs_array(words: list[int]) -> Any:
    """Return words as a uint64_t array, which is never empty."""
    return (c_uint64 * max(1, len(words)))(*words)


def records(data: bytes) -> list[bytes]:
    """Return the byte strings that ring_take wrote, each after its 32-bit length."""
    result, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        result.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return result
