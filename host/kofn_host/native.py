"""The compiled C of host/, for ctypes: protocol core, slots, ledger, engine, pacer and datagrams."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_double, c_int32, c_int64, c_uint16, c_uint32, c_void_p
from functools import cache
from pathlib import Path

from kofn_common.nativebuild.errors import BuildError
from kofn_common.nativebuild.library import Signatures, compile_texts, load_library
from kofn_common.places import folder_of
from kofn_host.errors import LedgerError

HERE = Path(__file__).parent
FOLDERS = [folder_of("kofn_common") / "wire", *(HERE / name for name in ("protocol", "compression", "engine"))]

_CORE = _ENGINE = _PORT = _SLOTS = _LEAF = _INCOMING = c_void_p
_OWN: Signatures = {
    "core_open": (_CORE, [c_int32, c_int32, c_void_p, *[c_int64] * 2, c_double, *[c_int64] * 2, *[c_int32] * 3]),
    "core_close": (None, [_CORE]),
    "core_begin": (c_int32, [_CORE, c_int64, c_double, c_void_p, c_int64, c_int64, c_int32]),
    "core_jump": (c_int32, [_CORE, c_int64, c_double, c_void_p, c_int64, c_int64, c_int32]),
    "core_contribute": (c_int32, [_CORE, c_void_p, c_int64, c_double, c_int32, c_int32, c_int32]),
    "core_datagram_in": (c_int32, [_CORE, c_char_p, c_char_p, c_int64, c_double]),
    "core_packets_done": (c_int32, [_CORE, c_double]),
    "core_results_in": (c_int32, [_CORE, c_int64, c_void_p, c_void_p, c_int64, c_double]),
    "core_timer": (c_int32, [_CORE, c_double]),
    "core_ask_slot": (c_int32, [_CORE]),
    "core_probe_link": (None, [_CORE]),
    "core_take_link_wait": (c_int32, [_CORE, c_double, c_void_p]),
    "core_follow": (c_int32, [_CORE, c_int32, c_double]),
    "core_mark_sent_at": (None, [_CORE, c_int64, c_int64, c_double]),
    "core_withdraw": (None, [_CORE, c_void_p, c_int64]),
    "core_enter": (None, [_CORE, c_uint32]),
    "core_others_reached": (None, [_CORE, c_int64]),
    "core_in_pieces": (None, [_CORE, c_void_p]),
    "core_received": (None, [_CORE, c_void_p]),
    "core_owned": (c_int32, [_CORE, c_void_p, c_int64, c_double]),
    "core_regroup": (None, [_CORE, c_uint32]),
    "core_resume": (c_int32, [_CORE, c_double]),
    "core_deadline_s": (c_double, [_CORE]),
    "core_read": (None, [_CORE, c_void_p]),
    "core_error": (c_char_p, [_CORE]),
    "core_take": (c_int64, [_CORE, c_void_p, c_void_p, c_int64]),
    "core_done": (None, [_CORE]),
    "core_next_results": (c_int64, [_CORE, c_int64]),
    "core_results": (c_int64, [_CORE, c_int64, c_void_p, c_void_p]),
    "slots_open": (_SLOTS, [c_int32, c_int32, c_int64, c_int32]),
    "slots_close": (None, [_SLOTS]),
    "slots_put": (c_void_p, [_SLOTS, c_char_p, c_char_p, c_int32, c_void_p, c_void_p]),
    "leaf_open": (_LEAF, [c_int32, c_int32, c_int64]),
    "leaf_close": (None, [_LEAF]),
    "engine_open": (_ENGINE, [c_void_p, c_void_p, c_int64, c_int32, c_double, c_int64, c_double, c_int32]),
    "engine_close": (None, [_ENGINE]),
    "engine_port": (_PORT, [_ENGINE, c_int64]),
    "engine_error_is_cores": (c_int32, [_ENGINE]),
    "engine_error": (c_char_p, [_ENGINE]),
    "engine_traffic": (c_void_p, [_ENGINE]),
    "port_news_fd": (c_int32, [_PORT]),
    "port_take": (c_int64, [_PORT, c_void_p, c_void_p, c_int64]),
    "port_want": (None, [_PORT, c_int64]),
    "port_rate": (None, [_PORT, c_double, c_int64, c_double, c_double]),
    "port_queued": (c_int64, [_PORT]),
    **{f"port_{name}": (None, [_PORT]) for name in ("wake", "hold", "release")},
    "port_reduce": (None, [_PORT, c_void_p]),
    "port_await": (None, [_PORT, c_int64, c_int64]),
    "pacer_open": (None, [c_void_p, c_double, c_int64, c_double]),
    "pacer_rate": (None, [c_void_p, c_double, c_int64, c_double, c_double]),
    "pacer_close": (None, [c_void_p]),
    "pacer_send": (c_double, [c_void_p, c_int64, c_int64, c_int64, c_double]),
    "pacer_next": (c_int64, [c_void_p]),
    "pacer_drop": (None, [c_void_p]),
    "pacer_release": (c_int64, [c_void_p, c_double]),
    "pacer_set": (None, [c_void_p, c_double]),
    "incoming_open": (_INCOMING, [c_int32]),
    "incoming_close": (None, [_INCOMING]),
    "datagrams_receive": (c_int64, [_INCOMING, c_void_p, c_int64, c_void_p, c_int64, c_int64, *[c_void_p] * 3]),
    "datagrams_send": (
        c_int64,
        [
            *(c_int32, c_void_p, c_int64, c_int64),  # the socket; headers and the checksum's place in them
            *(c_void_p, c_void_p, c_int64),  # bodies
            *(c_void_p, c_uint16),  # the destination
            *(c_void_p, c_void_p, c_void_p),  # the outcome, and whether datagrams may be coalesced
        ],
    ),
}

SHARED = (
    *("begin", "jump", "contribute", "results_in", "ask_slot", "withdraw", "enter", "others_reached"),
    *("in_pieces", "owned", "received", "regroup", "resume", "deadline_s", "next_results", "results"),
    *("take_link_wait", "follow"),
)
"""Functions of the core that an engine's port has as well: core_begin() and port_begin(), for example."""

SIGNATURES: Signatures = {**_OWN, **{f"port_{name}": _OWN[f"core_{name}"] for name in SHARED}}


@cache
def library() -> ctypes.CDLL:
    """Return the loaded library with SIGNATURES; CompilerMissing, CompileError, OSError."""
    return load_library(compiled(), SIGNATURES)


def compiled() -> Path:
    """Return the library's file, compiled if the cache lacks it; CompilerMissing, CompileError."""
    files = {path.name: path.read_text() for folder in FOLDERS for path in sorted(folder.glob("*.[ch]"))}
    return compile_texts(files, [name for name in files if name.endswith(".c")])


@contextmanager
def required(what: str) -> Iterator[None]:
    """Raise LedgerError if the `with` block cannot load native code; `what` begins the message: "codecs are"."""
    try:
        yield
    except (BuildError, OSError) as error:
        raise LedgerError(f"{what} native code: {error}") from error
