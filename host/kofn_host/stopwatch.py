"""A stopwatch that divides a call's time into parts."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal["encode", "send", "wait", "receive", "sum", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The parts of a call's time at this worker, in seconds; every moment counts in exactly one part.

    encode: checking the arrays, copying them into one; with a codec, rounding and packing.
    send: handing packets or bytes to the kernel, with headers and checksums.
    wait: waiting for other workers, links, switch or server, for the pacer, or for a thread.
    receive: taking packets or bytes from the kernel, checking them, and booking counted blocks in the ledger.
    sum: adding other workers' values to this worker's values, and dividing; 0 if another machine sums.
    decode: turning received values into means in the arrays' shapes.
    """

    encode: float = 0.0
    send: float = 0.0
    wait: float = 0.0
    receive: float = 0.0
    sum: float = 0.0
    decode: float = 0.0

    @property
    def total(self) -> float:
        return math.fsum((self.encode, self.send, self.wait, self.receive, self.sum, self.decode))


UNMEASURED = Times()
"""The times of a call that was not measured."""


class Stopwatch:
    """Measures the parts of a call: one part runs at any moment, `wait` at first.

    >>> watch = Stopwatch()
    >>> before = watch.turn("send")
    >>> watch.turn(before)
    'send'
    >>> round(watch.times().send)
    0
    """

    __slots__ = ("_part", "_since_s", "_spent_s")

    def __init__(self) -> None:
        self._spent_s: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)
        self._part: Part = "wait"
        self._since_s = time.perf_counter()

    def turn(self, part: Part) -> Part:
        """Switch to this part; return the previous one."""
        now, before = time.perf_counter(), self._part
        self._spent_s[before] += now - self._since_s
        self._since_s, self._part = now, part
        return before

    def during(self, part: Part) -> "During":
        """Return a context manager that switches to this part, and at its end back to the previous part.

        >>> watch = Stopwatch()
        >>> with watch.during("encode"):
        ...     watch.turn("encode")
        'encode'
        """
        return During(self, part)

    def times(self) -> Times:
        self.turn(self._part)
        return Times(**self._spent_s)


UNTIMED = nullcontext()
"""Replaces Stopwatch.during() where nothing is measured."""


class During:
    """A context manager that counts the time of its `with` block as one part, as Stopwatch.during() says."""

    __slots__ = ("_before", "_part", "_watch")

    def __init__(self, watch: Stopwatch, part: Part) -> None:
        self._watch, self._part, self._before = watch, part, part

    def __enter__(self) -> None:
        self._before = self._watch.turn(self._part)

    def __exit__(self, *error: object) -> None:
        self._watch.turn(self._before)


def within_wait(outer: Times, inner: Times) -> Times:
    """Return `outer` with a share of its wait replaced by `inner`, the times of a thread that the caller waited for."""
    return Times(
        encode=outer.encode + inner.encode,
        send=outer.send + inner.send,
        wait=outer.wait - inner.total + inner.wait,
        receive=outer.receive + inner.receive,
        sum=outer.sum + inner.sum,
        decode=outer.decode + inner.decode,
    )
