"""The rate of this worker's gradient, and the adaptive compression ratio that follows from it.

The inputs are sent contributions and their answers, with times of any clock.  docs/explanation/compression.md has the
source's formula and both readings of it.

    answers   | first |   window    |   window    |  --> time
              no rate    v             v'            |v' - v| <= stability * v HOLD consecutive times: v' is the rate
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kofn_common.wire.packet import WIDTHS
from kofn_host.errors import RateError

WINDOW = 8
"""W: the least number of packets over which a rate is measured."""

SPAN_S = 0.5e-3
"""The least time over which a rate is measured: the times of answers that were read together do not show the rate."""

FEW, LONG_S = 3, 10e-3
"""FEW packets suffice for a rate if they take LONG_S or more: the hosts' own delays are then negligible."""

HOLD = 4
"""Consecutive times that two windows must agree: windows of an oscillating rate sometimes agree too."""

RATIO_MIN = 2.0**-10
"""The least ratio, whatever a formula gives, so that some bytes are always sent."""

DROP = 0.5
"""Share of v0: a stable rate below this share counts at once.  Other rates count only as the mean of their iteration,
because rates also oscillate with the hosts' load."""

RISE = 0.25
"""Share by which v0 follows a higher rate: the highest of many samples overestimates."""

DEAD_ZONE = 0.1
"""Share by which v may be below v0 before lanes are narrowed, because an unchanged link is sometimes measured too low.
So a link at a quarter of its rate gets 8-bit lanes, not 4-bit lanes, even if its rate is measured a tenth too low.  The
share is below 1/2, so that a halved link is always noticed."""

LATE = 1 / 0.81
"""A gradient is late if it takes longer than LATE times the planned time.  Packets of narrow lanes have headers of the
same size as packets of wide lanes, so even suitably narrowed lanes take 1.1 to 1.2 times as long.  LATE is below 2, so
that a halved link makes an unchanged gradient late."""

PROBE = 16
"""The number of consecutive iterations in time after which the doubled ratio is tried."""


def deliverable(start_bps: float, now_bps: float) -> float:
    """Return the share that the link can still deliver in the planned time: r = v / v0, at most 1."""
    return min(1.0, now_bps / start_bps)


def literal(start_bps: float, now_bps: float) -> float:
    """Return the source's rate-change ratio, read literally: r = |v0 - v| / v0, at most 1."""
    return min(1.0, abs(start_bps - now_bps) / start_bps)


READINGS: Mapping[str, Callable[[float, float], float]] = {"deliverable": deliverable, "literal": literal}
"""Formulas by the names of compress.ratio_control: from v0 and v, both above 0, to r, 0 to 1."""


def compression_ratio(*, total_bytes: int, delivered_bytes: int, rest: float) -> float:
    """Return c = (s + (D - s) r) / D, from RATIO_MIN to 1.

    D is `total_bytes`, s is `delivered_bytes`, and r is `rest`, the share of the other D - s bytes to send.
    """
    delivered = min(1.0, delivered_bytes / total_bytes)
    return min(1.0, max(RATIO_MIN, delivered + (1.0 - delivered) * rest))


def lanes_for(ratio: float, widths: tuple[int, ...] = WIDTHS) -> int:
    """Return the bits of the widest lanes that take at most this ratio of float32's bits; else of the narrowest lanes.

    `widths`: the available widths, widest first.

    >>> [lanes_for(ratio) for ratio in (1.0, 0.5, 0.3, 0.2)]
    [32, 16, 8, 4]
    """
    return next((width for width in widths if width <= 32 * ratio), widths[-1])


class _Point(NamedTuple):
    """The acknowledged part of an iteration at a moment."""

    time_s: float
    packets: int
    wire_bytes: int
    gradient_bytes: int


class _Rates(NamedTuple):
    """Rates between two moments, in bit/s."""

    wire: float
    gradient: float


def _between(first: _Point, last: _Point) -> _Rates:
    bits = 8 / (last.time_s - first.time_s)
    return _Rates(
        wire=bits * (last.wire_bytes - first.wire_bytes), gradient=bits * (last.gradient_bytes - first.gradient_bytes)
    )


class _Stream:
    """The rates of an iteration's answers, over the newest window and the one before it."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._middle = self._first = 0

    def add(self, size: "_Sent", now: float) -> tuple[_Rates, _Rates] | None:
        """Add an answer; return the rates of the older and of the newer window, which ends at the previous answer.

        Return None if no rate is new.  The first answer only starts the clock: before this answer the worker waited for
        other workers.
        """
        points = self._points
        if not points:
            points.append(_Point(now, 0, 0, 0))
            return None
        last = points[-1]
        following = _Point(
            now, last.packets + 1, last.wire_bytes + size.wire_bytes, last.gradient_bytes + size.gradient_bytes
        )
        if now > last.time_s:
            rates = self._rates(last)  # the last point includes all answers that were read at its time
            points.append(following)
            return rates
        if len(points) > 1:
            points[-1] = following._replace(time_s=last.time_s)
        return None

    def whole(self) -> _Rates | None:
        """Return the mean rates from the first answer to the last; None if there are too few answers."""
        if not self._points or not _long_enough(self._points[0], self._points[-1], windows=2):
            return None
        return _between(self._points[0], self._points[-1])

    def _rates(self, newest: _Point) -> tuple[_Rates, _Rates] | None:
        """Return the rates of the two windows that end at this point, older and newer."""
        self._middle = self._start_of(newest, self._middle)
        middle = self._points[self._middle]
        self._first = self._start_of(middle, self._first)
        first = self._points[self._first]
        if not (_long_enough(middle, newest) and _long_enough(first, middle)):
            return None
        return _between(first, middle), _between(middle, newest)

    def _start_of(self, end: _Point, start: int) -> int:
        """Return the latest point from `start` on that is a whole window before `end`."""
        while start + 1 < len(self._points) and _long_enough(self._points[start + 1], end):
            start += 1
        return start


def _long_enough(begin: _Point, end: _Point, windows: int = 1) -> bool:
    packets, span_s = end.packets - begin.packets, end.time_s - begin.time_s
    return (packets >= windows * WINDOW and span_s >= SPAN_S) or (
        packets >= windows * FEW and span_s >= windows * LONG_S
    )


class _Sent(NamedTuple):
    """A sent contribution."""

    wire_bytes: int
    gradient_bytes: int


class RateEstimator:
    """One worker's rate and ratio; `reading` is one of READINGS, `stability` the share of compress.rate_stability.

    >>> rate = RateEstimator("deliverable", stability=0.1)
    >>> rate.begin(gradient_bytes=4096)
    >>> rate.answered(0.01, wire_bytes=1106, gradient_bytes=1024)
    >>> rate.ratio, rate.wish
    (1.0, 1.0)
    """

    def __init__(self, reading: str, *, stability: float) -> None:
        """Raise RateError if the reading is unknown."""
        if reading not in READINGS:
            raise RateError(f"reading must be one of {', '.join(READINGS)}, got {reading!r}")
        self._formula, self._literal, self._stability = READINGS[reading], reading == "literal", stability
        self._stream = _Stream()
        self._total_bytes, self._delivered_bytes = 1, 0
        self._agreed = 0  # consecutive times that two windows agreed
        self._in_time = 0  # consecutive iterations whose gradient was in time
        self._provisional = False  # whether v0 comes from a part of the first iteration
        self._gradient_bps = self._planned_bps = 0.0  # like v and v0, but counting the gradient's bytes
        self.measured = False
        """Whether v was set during the current iteration, because the rate has dropped."""
        self.rate_bps: float | None = None
        """v: the newest stable rate, in bit/s on the wire."""
        self.start_bps: float | None = None
        """v0: the first rate, raised by later higher rates; in the literal reading the iteration's first rate."""

    def begin(self, gradient_bytes: int) -> None:
        """Begin an iteration with a gradient of `gradient_bytes` as float32 (D); the last stable rate stays."""
        if gradient_bytes < 1:
            raise RateError(f"gradient_bytes must be 1 or more, got {gradient_bytes}")
        whole = self._stream.whole()
        if whole is not None and not self._literal and not self.measured:
            self._set_rate(whole, restart=self._provisional)
            self._provisional = False
        self._in_time = self._in_time % PROBE + 1 if self.in_time else 0
        self._stream, self.measured = _Stream(), False
        self._total_bytes, self._delivered_bytes, self._agreed = gradient_bytes, 0, 0
        if self._literal:
            self.start_bps = None

    def answered(self, now: float, *, wire_bytes: int, gradient_bytes: int) -> None:
        """Take the answer to a contribution, once per block, if this worker is in the sum."""
        self._delivered_bytes += gradient_bytes
        windows = self._stream.add(_Sent(wire_bytes, gradient_bytes), now)
        if windows is not None:
            self._judge(*windows)

    @property
    def rest(self) -> float:
        """r: the share of the remaining bytes that should be sent, 0 to 1; 1 while no rate is known.

        In the "deliverable" reading, v is raised by DEAD_ZONE: a rate that is less than DEAD_ZONE below v0 counts as
        equal.  And the current share is kept while the gradient arrives in the planned time: if the link is not the
        bottleneck, smaller packets lower the byte rate.
        """
        if self.rate_bps is None or self.start_bps is None:
            return 1.0
        if self._literal:
            return self._formula(self.start_bps, self.rate_bps)
        rest = self._formula(self.start_bps, self.rate_bps / (1 - DEAD_ZONE))
        if not self.in_time:
            return rest
        sent = self.rate_bps / self.start_bps * self._planned_bps / self._gradient_bps
        return max(rest, min(1.0, 2 * sent if self._in_time == PROBE else sent))

    @property
    def in_time(self) -> bool:
        """Whether the gradient takes at most LATE times as long as at v0, in any lanes."""
        return 0 < self._planned_bps <= LATE * self._gradient_bps

    @property
    def ratio(self) -> float:
        """c: the share of the gradient's bytes to send in this whole iteration, from RATIO_MIN to 1."""
        return compression_ratio(total_bytes=self._total_bytes, delivered_bytes=self._delivered_bytes, rest=self.rest)

    @property
    def wish(self) -> float:
        """The ratio for the next iteration, before any delivery, from RATIO_MIN to 1."""
        return compression_ratio(total_bytes=self._total_bytes, delivered_bytes=0, rest=self.rest)

    def _judge(self, older: _Rates, newer: _Rates) -> None:
        """Test two windows for stability.

        A stable rate becomes v at once if it is far below v0, or in the literal reading.
        """
        close = newer.wire > 0 and abs(newer.wire - older.wire) <= self._stability * older.wire
        self._agreed = self._agreed + 1 if close else 0
        if self._agreed < HOLD:
            return
        self._provisional = self._provisional or self.start_bps is None
        dropped = self.start_bps is not None and newer.wire < DROP * self.start_bps
        counts = dropped or self._literal or self.start_bps is None or self.measured  # measured: v has recovered
        self.measured = dropped or self._literal
        if counts:
            self._set_rate(newer)

    def _set_rate(self, rates: _Rates, *, restart: bool = False) -> None:
        """Set v, and v0 if it must follow; `restart`: set v0 in any case."""
        self.rate_bps, self._gradient_bps = rates.wire, rates.gradient
        if self.start_bps is None or restart:
            self.start_bps, self._planned_bps = rates.wire, rates.gradient
        elif not self._literal and rates.wire > self.start_bps:
            self.start_bps += RISE * (rates.wire - self.start_bps)
            self._planned_bps += RISE * (rates.gradient - self._planned_bps)
