"""The model's units: s, the block time when nothing blocks, and tau, the duration of one blocking event.

A Poisson count's variance equals its mean, so var / mean of the blocking times tau * N is tau: the unit is measured,
not chosen. Pure functions of times (n, window), NaN where unknown; `cut` marks lower bounds.
"""

from dataclasses import dataclass, replace

import numpy as np

from controller.goodness import PAIRS_MIN, variances
from controller.measure import BoolArray, FloatArray
from controller.poisson import poisson_rates

NOISE = 0.02
"""Share of the smallest time by which s may be above it: timer and scheduler noise, no blocking."""

LOW_QUANTILE = 0.05

EVENT_MIN_S = 1e-4
"""Smallest tau: below it lies the noise of the clocks, and the lattice of times would only grow."""

OUTLIER = 10.0
"""A worker's largest blocking time counts for tau only when below this many times its second largest, or below this
many times what tau is without blocking."""

TIE = 0.5
"""Added to the count at which an observation was cut off: a tie may go either way, and a moment between two counts
rules the lower one out."""

ENOUGH = 256
"""Most workers that tau is estimated from."""

ROUNDS, SETTLED = 8, 0.02
"""Most steps towards tau, and the relative change that ends them."""

ROUGHLY = 0.02
"""Relative step that ends the search for rates that are only on the way to tau."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """tau, and how well it is known."""

    event_s: float
    freedom: float  # degrees of freedom of its estimate; infinite where it was not estimated


def estimate_service(times_s: FloatArray, cut: BoolArray) -> float:
    """s; 0 while nothing is known."""
    whole = times_s[~cut & ~np.isnan(times_s)]
    return float(low_time(whole[None, :])[0]) if whole.size else 0.0


def low_time(times: FloatArray) -> FloatArray:
    """A low quantile of each row of (rows, times), at most NOISE above its smallest.

    The quantile lets a single odd report move s by little; the bound keeps it from rising when everyone is blocked.
    """
    at = int(LOW_QUANTILE * (times.shape[1] - 1))
    return np.asarray(np.minimum(np.partition(times, at, axis=1)[:, at], (1 + NOISE) * times.min(axis=1)))


def in_events(blocking_s: FloatArray, cut: BoolArray, event_s: float) -> FloatArray:
    """Blocking times in units of tau; whoever was cut off after c units had blocked for more, or equally long."""
    return np.asarray(blocking_s / event_s + TIE * cut)


def estimate_event(blocking_s: FloatArray, cut: BoolArray, *, fallback_s: float) -> Unit:
    """tau: variance over mean of the blocking times (n, window), pooled over workers; `fallback_s` without blocking.

    The variance is half the mean square of successive differences: a worker that changes from fast to slow adds one
    large difference, not a second level. What was cut off enters by its mean and variance given that it was, under
    the tau that comes out: the fixed point is looked for by the secant method in log tau. One event lasts no longer
    than the longest blocking that was seen to its end.
    """
    some = slice(None, None, -(-len(blocking_s) // ENOUGH) or 1)
    blocking_s, cut = blocking_s[some], cut[some]
    blocking_s = np.where(outliers(blocking_s, cut, fallback_s), np.nan, blocking_s)
    whole = ~cut & ~np.isnan(blocking_s)
    rows = whole.sum(axis=1) > PAIRS_MIN
    blocking_s, cut, whole = blocking_s[rows], cut[rows], whole[rows]
    unit = Unit(event_s=max(fallback_s, EVENT_MIN_S), freedom=np.inf)
    longest_s = float(np.max(blocking_s, where=whole, initial=0.0))
    if longest_s <= 0:
        return unit
    found = _fixed_point(blocking_s, cut, unit)
    return replace(found, event_s=min(found.event_s, max(longest_s, EVENT_MIN_S)))


def _fixed_point(blocking_s: FloatArray, cut: BoolArray, unit: Unit) -> Unit:
    """The tau that the variances confirm."""
    logs: list[float] = []
    gaps: list[float] = []
    rate = None
    for _ in range(ROUNDS):
        found, rate = _pooled(blocking_s, cut, unit.event_s, rate)
        logs.append(float(np.log(unit.event_s)))
        gaps.append(float(np.log(found.event_s)) - logs[-1])
        if abs(gaps[-1]) < SETTLED:
            return found
        slope = (gaps[-1] - gaps[-2]) / (logs[-1] - logs[-2]) if len(logs) > 1 else -1.0
        step = np.clip(-gaps[-1] / min(slope, -0.2), -1.5, 1.5)
        unit = Unit(event_s=max(float(np.exp(logs[-1] + step)), EVENT_MIN_S), freedom=found.freedom)
        rate = rate * np.exp(logs[-1]) / unit.event_s
        if np.log(unit.event_s) == logs[-1]:
            break
    return unit


def _pooled(
    blocking_s: FloatArray, cut: BoolArray, event_s: float, start: FloatArray | None
) -> tuple[Unit, FloatArray]:
    """Variance over mean, pooled over workers so that each counts for what its variance tells; and the rates."""
    counts = in_events(blocking_s, cut, event_s)
    rate, blocks = poisson_rates(counts, cut, start, ROUGHLY)
    variance, weight = variances(counts, cut, rate, blocks)
    total = float(weight @ rate)
    if not weight @ variance > 0 or not total > 0:
        return Unit(event_s=event_s, freedom=np.inf), rate
    ratio = float(weight @ variance) / total  # its relative variance is 1 / total
    return Unit(event_s=max(event_s * ratio, EVENT_MIN_S), freedom=2 * total), rate


def outliers(blocking_s: FloatArray, cut: BoolArray, least_s: float) -> BoolArray:
    """Marks each worker's largest value where it stands alone: one long pause must not become the unit of all.

    One event among blocks without any stands alone, too: below OUTLIER * `least_s` nothing is marked.
    """
    filled = np.where(cut | np.isnan(blocking_s), 0.0, blocking_s)
    if filled.shape[1] < 2:
        return np.zeros(filled.shape, dtype=np.bool_)
    second, largest = np.partition(filled, -2, axis=1)[:, -2:].T
    alone = largest > OUTLIER * np.maximum(second, least_s)
    return np.asarray(alone[:, None] & (filled == largest[:, None]))
