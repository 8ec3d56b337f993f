"""The specification and the native core side by side: both get every event and must return the same instructions.

The specification (core.py in this folder) is the protocol in plain Python; it defines the core's behaviour, to the last
bit of every time.
"""

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from kofn_common.nativebuild.library import Signatures, compile_texts, load_library
from kofn_host.errors import ProtocolError
from kofn_host.native import FOLDERS
from kofn_host.protocol.instructions import Deliver, Instruction, PackedBlocks, Send
from tests.host.protocol.specification.core import Protocol as Specification
from tests.host.protocol.watched import Watched

HERE = Path(__file__).parent
STATE = (
    "iteration",
    "generation",
    "regrouping",
    "k",
    "given",
    "deadline",
    "left_behind",
    "over",
    "missing",
    "share",
    "waiting_count",
    "wire_bytes",
)
EVENTS = (
    *("begin", "jump", "contribute", "contribute_all", "packet_in", "packets_in", "results_in", "timer", "ask_slot"),
    *("enter", "others_reached", "in_pieces", "owned", "received", "regroup", "resume", "withdraw", "follow"),
)


@cache
def explorer() -> ctypes.CDLL:
    """Return the library with the functions of explore.c."""
    texts = {path.name: path.read_text() for folder in (*FOLDERS, HERE) for path in sorted(folder.glob("*.[ch]"))}
    signatures: Signatures = {
        "core_copy": (ctypes.c_void_p, [ctypes.c_void_p]),
        "core_await_only": (None, [ctypes.c_void_p, ctypes.c_int64]),
        "core_ring": (None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double]),
    }
    return load_library(compile_texts(texts, [name for name in texts if name.endswith(".c")]), signatures)


class Native(Watched):
    """A Protocol that can be copied."""

    def clone(self) -> "Native":
        other = copy(self)
        other._own, other._kept = copy(self._own), list(self._kept)
        other._attach(explorer().core_copy(self.address))
        return other


class Both:
    """Both protocols as one; further attributes are the specification's."""

    def __init__(self, **options: Any) -> None:
        self.specification, self.native = Specification(**options), Native(**options)
        self._sent: dict[int, Send] = {}  # the native instruction, by its header's identity

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "specification":
            raise AttributeError(name)
        return getattr(self.specification, name)

    def clone(self) -> "Both":
        other: Both = Both.__new__(Both)
        other.specification, other.native, other._sent = (
            _copied(self.specification),
            self.native.clone(),
            dict(self._sent),
        )
        return other

    def leaves(self, sent: Send, at: float) -> None:
        self.specification.leaves(sent, at)
        self.native.leaves(self._sent[id(sent.header)], at)
        self._same_state()

    def await_only(self, workers: int) -> None:
        """Forget results once these first workers have given, not all: a mistake."""
        self.specification._everyone = (1 << workers) - 1
        explorer().core_await_only(self.native.address, workers)

    def ring(self, request: int, now: float) -> None:
        """Let one request's time pass, and no other's."""
        in_flight = self.specification._in_flight
        in_flight.silent_from = math.inf
        for other, flight in in_flight.by_request.items():
            flight.deadline = now if other == request else math.inf
        explorer().core_ring(self.native.address, request, now)

    def _same_state(self) -> None:
        for name in STATE:
            expected, found = getattr(self.specification, name), getattr(self.native, name)
            assert found == (None if expected == math.inf else expected), f"{name} must be {expected}, got {found}"
        assert self.native.statistics == self.specification.statistics
        assert list(self.native.blocks) == list(self.specification.blocks)
        assert sorted(self.native.waiting) == sorted(self.specification.waiting)

    def _same(self, expected: Any, found: Any) -> None:
        if isinstance(expected, list) and expected and isinstance(expected[0], Instruction):
            self._remember(expected, found)
            expected, found = plain(expected), plain(found)
        assert found == expected

    def _remember(self, expected: Sequence[Instruction], found: Sequence[Instruction]) -> None:
        sends = ([one for one in of if isinstance(one, Send)] for of in (expected, found))
        self._sent |= {id(one.header): other for one, other in zip(*sends, strict=True)}


def _copied(specification: Specification) -> Specification:
    p = copy(specification)
    p._history = copy(p._history)
    p._history._whole = {iteration: dict(known) for iteration, known in p._history._whole.items()}
    p._history._members = dict(p._history._members)
    p._in_flight = copy(p._in_flight)
    for flights in ("by_request", "merged"):
        copies = {request: copy(flight) for request, flight in getattr(p._in_flight, flights).items()}
        setattr(p._in_flight, flights, copies)
    p._blocks = copy(p._blocks)
    p._blocks.open, p._blocks.slot_lanes = set(p._blocks.open), dict(p._blocks.slot_lanes)
    p._launched, p.statistics = set(p._launched), copy(p.statistics)
    for timeout in ("_waiting_timeout", "_moving_timeout", "_answer_timeout", "_patience"):
        setattr(p._in_flight, timeout, copy(getattr(p._in_flight, timeout)))
    p.query = copy(p.query)
    p._waiting = dict(p._waiting)
    return p


def _event(name: str) -> Callable[..., Any]:
    def event(self: Both, *arguments: Any, **options: Any) -> Any:
        given = [
            [*argument]
            if isinstance(argument, Iterable) and not isinstance(argument, tuple | bytes | PackedBlocks)
            else argument
            for argument in arguments
        ]
        try:
            expected = getattr(self.specification, name)(*given, **options)
        except ProtocolError as error:
            try:
                getattr(self.native, name)(*given, **options)
            except ProtocolError as other:
                assert _start(str(other)) == _start(str(error))
                raise error from None
            raise AssertionError(f"the native core takes what is refused: {error}") from error
        self._same(expected, getattr(self.native, name)(*given, **options))
        self._same_state()
        return expected

    return event


for _name in EVENTS:
    setattr(Both, _name, _event(_name))


def _start(error: str) -> str:
    return error[:25]


def plain(instructions: Sequence[Instruction]) -> list[Any]:
    """Return instructions in a comparable form: results one by one."""
    found: list[Any] = []
    for one in instructions:
        if isinstance(one, Deliver):
            found += zip(one.results, one.hints.tolist(), one.times.tolist(), strict=True)
        else:
            found.append((one.header, one.values) if isinstance(one, Send) else one)
    return found
