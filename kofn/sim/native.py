"""The simulator's C code, compiled for ctypes with the protocol core, the slots and the pacer that it drives."""

import ctypes
import weakref
from ctypes import c_char_p, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kofn_common.nativebuild.library import Signatures, compile_texts, load_library
from kofn_host import native

S = TypeVar("S", bound=ctypes.Structure)
HERE = Path(__file__).parent
FOLDERS = [*native.FOLDERS, HERE]

_CLOCK = _MACHINE = _LINK = _STAR = _HOST = c_void_p
_PACKET = (c_char_p, c_char_p, c_int64)

SIGNATURES: Signatures = {
    "clock_open": (_CLOCK, []),
    "clock_close": (None, [_CLOCK]),
    "clock_call": (c_int64, [_CLOCK, c_double]),
    "clock_next": (c_int64, [_CLOCK]),
    "machine_open": (_MACHINE, [_CLOCK, c_int64]),
    "machine_close": (None, [_MACHINE]),
    "machine_spend": (c_double, [_MACHINE, c_double]),
    "link_open": (_LINK, [_CLOCK, c_double, c_int64]),
    "link_close": (None, [_LINK]),
    "link_shape": (None, [_LINK, c_double]),
    "link_put": (None, [_LINK, *_PACKET]),
    "link_arrived": (c_int64, [_LINK, c_void_p, c_void_p]),
    "star_open": (_STAR, [_MACHINE, c_void_p, c_void_p, c_int64, c_double, c_int64]),
    "star_close": (None, [_STAR]),
    "star_to": (None, [_STAR, c_int64, _LINK]),
    "star_follow": (None, [_STAR, c_int64, c_int32]),
    "star_to_root": (None, [_STAR, _LINK]),
    "star_from": (None, [_STAR, _LINK]),
    "star_put": (None, [_STAR, *_PACKET]),
    "star_digest": (None, [_STAR, c_void_p]),
    "host_open": (
        _HOST,
        [_MACHINE, c_void_p, _LINK, *(c_double, c_double, c_int64, c_double), *(c_int64, c_int64)],
    ),
    "host_close": (None, [_HOST]),
    "host_rate": (None, [_HOST, c_double, c_int64, c_double]),
    "host_queued": (c_int64, [_HOST]),
    "host_send": (None, [_HOST]),
    "host_set_timer": (None, [_HOST]),
    "host_from": (None, [_HOST, _LINK]),
    "host_put": (None, [_HOST, *_PACKET]),
}


@cache
def library() -> ctypes.CDLL:
    """Return the library, compiled if it is not in the cache. Raise CompilerMissing, CompileError, OSError."""
    files = {path.name: path.read_text() for folder in FOLDERS for path in sorted(folder.glob("*.[ch]"))}
    return load_library(compile_texts(files, [name for name in files if name.endswith(".c")]), SIGNATURES)


class Native:
    """A struct of the simulator's C code: `kind`_open() makes it; when this object ends, `kind`_close() frees it."""

    def __init__(self, kind: str, *arguments: Any, keeps: object = None) -> None:
        """Make the struct; `keeps` are objects that the struct points to."""
        self._kind, self._keeps = kind, keeps
        self.address = c_void_p(self.function("open")(*arguments))
        self._functions: dict[str, Any] = {}
        weakref.finalize(self, self.function("close"), self.address)

    def function(self, name: str) -> Any:
        """Return the C function `kind`_`name`, whose first argument is the struct's address."""
        return getattr(library(), f"{self._kind}_{name}")

    def call(self, name: str, *arguments: Any) -> Any:
        function = self._functions.get(name) or self._functions.setdefault(name, self.function(name))
        return function(self.address, *arguments)

    def fields(self, kind: type[S]) -> S:
        """Return a view of the struct's fields."""
        assert self.address.value is not None
        return kind.from_address(self.address.value)
