"""Where a call's time goes: every moment belongs to exactly one part of it."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal["encode", "send", "wait", "receive", "sum", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where a call's time went, in seconds of this worker: every moment is in exactly one of these.

    encode: from the arrays to what is sent: checked, copied into one, rounded and packed where there is a codec.
    send: handing packets or bytes to the kernel, with their headers and checksums.
    wait: nothing to do here: for other workers, links, switch or server, a pacer's turn, and a thread's turn.
    receive: taking packets or bytes from the kernel, checking them, and noting in the ledger what was counted.
    sum: adding other workers' values to one's own, and dividing; 0 where another machine does it.
    decode: from what came to the means in their shapes.
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
"""Of a call that nobody has timed."""


class Stopwatch:
    """Which part of a call goes on, and for how long each did: one at any moment, `wait` at first.

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
        """From now on it is this part; returns which it was."""
        now, before = time.perf_counter(), self._part
        self._spent_s[before] += now - self._since_s
        self._since_s, self._part = now, part
        return before

    def during(self, part: Part) -> "During":
        """It is this part until the block ends, then again what it was before.

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
"""In place of Stopwatch.during() where nobody measures."""


class During:
    """A block of which all time belongs to one part."""

    __slots__ = ("_before", "_part", "_watch")

    def __init__(self, watch: Stopwatch, part: Part) -> None:
        self._watch, self._part, self._before = watch, part, part

    def __enter__(self) -> None:
        self._before = self._watch.turn(self._part)

    def __exit__(self, *error: object) -> None:
        self._watch.turn(self._before)


def within_wait(outer: Times, inner: Times) -> Times:
    """The times of one who waited while another worked for it: those of the inner one are of the outer's wait."""
    return Times(
        encode=outer.encode + inner.encode,
        send=outer.send + inner.send,
        wait=outer.wait - inner.total + inner.wait,
        receive=outer.receive + inner.receive,
        sum=outer.sum + inner.sum,
        decode=outer.decode + inner.decode,
    )
