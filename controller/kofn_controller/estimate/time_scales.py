"""Estimates the model's time scales: s, the block time without blocking, and tau, the duration of one blocking event.

A Poisson count's variance equals its mean, so the variance of the blocking times tau * N divided by their mean is tau.
Pure functions of times (n, window), NaN where unknown; `cut` marks lower bounds.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.poisson import CONFIDENCE, TIE, imputed, poisson_rates

NOISE = 0.02
"""Largest difference between s and the second smallest time, as a share of that time: noise of timer and scheduler."""

LOW_QUANTILE = 0.05

EVENT_MIN_S = 1e-4
"""Smallest tau: the clocks' noise is larger, and the lattice of times would have too many points."""

OUTLIER = 10.0
"""A worker's largest blocking time counts for tau only if it is at most this many times the second largest, or this
many times the fallback for tau."""

PAIRS_MIN = 3
"""Minimum number of differences of successive times for a worker's variance to count."""

ENOUGH = 256
"""Maximum number of workers from which tau is estimated."""

ROUNDS, SETTLED = 8, 0.02
"""Maximum number of steps towards tau, and the relative change that ends them."""

BISECTIONS = 12
"""Number of bisections of the hidden blocking."""

SOME = 1024
"""Number of workers whose observations are evaluated together."""

ROUGHLY = 0.02
"""Relative step that ends the search for rates during the search for tau."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDuration:
    """tau, and its precision."""

    event_s: float
    freedom: float  # degrees of freedom of the estimate; infinite if tau was not estimated


def estimate_service(times_s: FloatArray, cut: BoolArray) -> float:
    """Return s; 0 while unknown."""
    whole = times_s[~cut & ~np.isnan(times_s)]
    return float(low_time(whole[None, :])[0]) if whole.size else 0.0


def low_time(times: FloatArray) -> FloatArray:
    """Return a low quantile of each row of `times` (rows, times), at most NOISE above the row's second smallest time.

    The bound keeps s from rising when all workers are blocked. The second smallest time is used for the bound, because
    the smallest may be an outlier.
    """
    low, second = int(LOW_QUANTILE * (times.shape[1] - 1)), min(1, times.shape[1] - 1)
    ordered = np.partition(times, (low, second), axis=1)
    return np.asarray(np.minimum(ordered[:, low], (1 + NOISE) * ordered[:, second]))


def in_events(blocking_s: FloatArray, cut: BoolArray, event_s: float) -> FloatArray:
    """Return blocking times in units of tau; a lower bound gets TIE more."""
    return np.asarray(blocking_s / event_s + TIE * cut)


def estimate_event(blocking_s: FloatArray, cut: BoolArray, *, fallback_s: float) -> EventDuration:
    """Estimate tau as the variance over the mean of the blocking times (n, window), pooled over workers; `fallback_s`
    if no worker was blocked.

    The variance is half the mean square of successive differences, so that a worker's change from fast to slow adds one
    large difference and not a second level. A censored time enters by its conditional mean and variance under the
    resulting tau; the secant method finds this fixed point in log tau. tau is at most the longest uncensored blocking.
    """
    some = enough(len(blocking_s))
    blocking_s, cut = blocking_s[some], cut[some]
    blocking_s = np.where(outliers(blocking_s, cut, fallback_s), np.nan, blocking_s)
    whole = ~cut & ~np.isnan(blocking_s)
    rows = whole.sum(axis=1) > PAIRS_MIN
    blocking_s, cut, whole = blocking_s[rows], cut[rows], whole[rows]
    event = EventDuration(event_s=max(fallback_s, EVENT_MIN_S), freedom=np.inf)
    longest_s = float(np.max(blocking_s, where=whole, initial=0.0))
    if longest_s <= 0:
        return event
    found = _fixed_point(blocking_s, cut, event)
    return replace(found, event_s=min(found.event_s, max(longest_s, EVENT_MIN_S)))


def enough(workers: int) -> slice:
    """Return a slice of at most ENOUGH evenly spaced workers."""
    return slice(None, None, -(-workers // ENOUGH) or 1)


def _fixed_point(blocking_s: FloatArray, cut: BoolArray, event: EventDuration) -> EventDuration:
    """Find the tau for which the ratio of variance to mean, computed with this tau, is tau again; begin at `event`."""
    logs: list[float] = []
    gaps: list[float] = []
    rate = None
    for _ in range(ROUNDS):
        found, rate = _pooled(blocking_s, cut, event.event_s, rate)
        logs.append(float(np.log(event.event_s)))
        gaps.append(float(np.log(found.event_s)) - logs[-1])
        if abs(gaps[-1]) < SETTLED:
            return found
        slope = (gaps[-1] - gaps[-2]) / (logs[-1] - logs[-2]) if len(logs) > 1 else -1.0
        step = np.clip(-gaps[-1] / min(slope, -0.2), -1.5, 1.5)
        event = EventDuration(event_s=max(float(np.exp(logs[-1] + step)), EVENT_MIN_S), freedom=found.freedom)
        rate = rate * np.exp(logs[-1]) / event.event_s
        if np.log(event.event_s) == logs[-1]:
            break
    return event


def _pooled(
    blocking_s: FloatArray, cut: BoolArray, event_s: float, start: FloatArray | None
) -> tuple[EventDuration, FloatArray]:
    """Return variance over mean, pooled over workers by the precision of each variance, and the rates (n,)."""
    counts = in_events(blocking_s, cut, event_s)
    rate, blocks = poisson_rates(counts, cut, start, ROUGHLY)
    variance, weight = variances(counts, cut, rate, blocks)
    total = float(weight @ rate)
    if not weight @ variance > 0 or not total > 0:
        return EventDuration(event_s=event_s, freedom=np.inf), rate
    ratio = float(weight @ variance) / total  # with the relative variance 1 / total
    return EventDuration(event_s=max(event_s * ratio, EVENT_MIN_S), freedom=2 * total), rate


def variances(
    counts: FloatArray, cut: BoolArray, rate: FloatArray, blocks: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return each worker's variance (n,), and the weight (n,) of its ratio to the mean; 0 where unknown.

    The variance is half the mean square of successive differences; a censored count enters by its conditional mean and
    variance. For Poisson counts this estimate has the variance mu (3 mu + 1) / pairs.
    """
    mean, spread = imputed(counts, cut, rate)
    squares = np.diff(mean, axis=1) ** 2 + spread[:, 1:] + spread[:, :-1]
    unknown = np.isnan(squares)
    squares[unknown] = 0.0
    pairs = squares.shape[1] - np.sum(unknown, axis=1)
    variance = 0.5 * np.sum(squares, axis=1) / np.maximum(pairs, 1)
    whole = np.sum(~cut & ~np.isnan(counts), axis=1)
    told = np.where((pairs >= PAIRS_MIN) & (whole > PAIRS_MIN), np.minimum(pairs, blocks), 0.0)
    return variance, told / (3 * rate + 1)


def outliers(blocking_s: FloatArray, cut: BoolArray, least_s: float) -> BoolArray:
    """Mark a worker's largest value if it is above OUTLIER times its second largest: one long pause must not determine
    tau.

    A single event among unblocked blocks is not marked, because no value up to OUTLIER * `least_s` is marked.
    """
    filled = np.where(cut | np.isnan(blocking_s), 0.0, blocking_s)
    if filled.shape[1] < 2:
        return np.zeros(filled.shape, dtype=np.bool_)
    second, largest = np.partition(filled, -2, axis=1)[:, -2:].T
    alone = largest > OUTLIER * np.maximum(second, least_s)
    return np.asarray(alone[:, None] & (filled == largest[:, None]))


def hidden_blocking(rates: FloatArray, whole: FloatArray, service: float) -> float:
    """Return an upper bound of the hidden blocking, in units of the fitted tau; 0 if some blocks were surely unblocked.

    Hidden blocking is in every measured time, so the fit takes it for a part of s. `rates` (n,) are fitted, `whole`
    (n,) counts the uncensored observations, `service` is s / tau.
    """
    seen = (whole > 0) & (rates > 0)
    rates, whole = rates[seen], whole[seen]
    mean = float(np.average(rates, weights=whole)) if len(rates) else 0.0
    if not mean or not _may_hide(_one_event(mean), rates, whole, mean):
        return 0.0
    low, high = _one_event(mean), service
    if _may_hide(high, rates, whole, mean):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _may_hide(middle, rates, whole, mean) else (low, middle)
    return low


def _one_event(mean: float) -> float:
    """Return the hidden blocking x, in units of the fitted tau, that is exactly one event long.

    Hidden blocking divides tau by 1 + x / mean, so x = 1 / (1 + x / mean).
    """
    return float((np.sqrt(mean**2 + 4 * mean) - mean) / 2)


def _may_hide(more: float, rates: FloatArray, whole: FloatArray, mean: float) -> bool:
    """Return whether it is likely enough that each uncensored observation had `more` hidden blocking.

    The variance of the times stays the same. So tau, variance over mean, is smaller by the factor by which the mean is
    larger.
    """
    scale, likely, least = 1 + more / mean, 0.0, np.log((1 - CONFIDENCE) / 2)
    for first in range(0, len(rates), SOME):  # every logarithm is negative, so a part of the sum may suffice
        some = slice(first, first + SOME)
        chance = special.gammainc(more * scale, (rates[some] + more) * scale)  # P(N >= more), also between whole counts
        likely += whole[some] @ np.log(np.maximum(chance, 1e-300))
        if likely <= least:
            return False
    return True
