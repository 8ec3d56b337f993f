"""The model of first-block times: T_i = s + tau * N_i, N_i ~ Poisson(mu_i), lambda_i = tau * mu_i.

s is the block time when nothing blocks, tau the duration of one blocking event, lambda_i worker i's mean blocking time
(docs/CONTROL.md). Pure functions of arrays; knows nothing of workers' names, k, or time.

A Poisson count's variance equals its mean, so var / mean of the blocking times tau * N is tau: the unit is measured,
not chosen. Observations that were cut off (lower bounds) enter the likelihood as survival terms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from controller.goodness import PAIRS_MIN, Curve, Fits, check, describe, variances
from controller.measure import BoolArray, FloatArray
from controller.poisson import interval, poisson_done, poisson_rates

NOISE = 0.02
"""Share of the smallest time by which s may be above it: timer and scheduler noise, no blocking."""

LOW_QUANTILE = 0.05

EVENT_SHARE = 0.1
"""tau as a share of s where nothing was blocked and no dispersion can be measured."""

EVENT_MIN_S = 1e-4
"""Smallest tau: below it lies the noise of the clocks, and the lattice of times would only grow."""

OUTLIER = 10.0
"""A worker's largest blocking time counts for tau only when below this many times its second
largest, or below this many times EVENT_SHARE of s."""

TIE = 0.5
"""Added to the count at which an observation was cut off: a tie may go either way, and a moment between two counts
rules the lower one out."""

STEP = 1.05
"""Ratio of units over which a rate's dependence on the unit is measured."""

ROUNDS, SETTLED = 8, 0.02
"""Most steps towards tau, and the relative change that ends them."""

ROUGHLY = 0.02
"""Relative step that ends the search for rates that are only on the way to tau."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The fitted model of n workers; arrays are (n,)."""

    service_s: float  # s
    event_s: float  # tau
    lambda_s: FloatArray  # mean blocking times
    low_s: FloatArray  # their confidence interval
    high_s: FloatArray  # infinite where nothing is known
    blocks: FloatArray  # whole observations' worth of information; a lower bound counts for less than one
    dispersion: FloatArray  # var / (tau * mean) of the blocking times: 1 where Poisson fits; NaN where unknown
    poisson: BoolArray  # False where the blocking times are not Poisson's: `curves` has such a worker's own
    curves: Mapping[int, Curve]  # not of who is silent for longer than ever: that is news
    event_error: float = 0.0  # standard error of tau, as a share of it; 0 where it was not estimated

    def done(self, events: FloatArray, live: BoolArray) -> FloatArray:
        """P(N_i <= m) at the `events` m (points,) for the live workers (n, points), P(T_i <= s + tau * m)."""
        rows = np.flatnonzero(live)
        result = poisson_done(events, self.lambda_s[rows] / self.event_s)
        for index, rank in enumerate(rows.tolist()):
            if rank in self.curves:
                result[index] = self.curves[rank].done(events)
        return result

    def longest(self, live: BoolArray) -> float:
        """The largest mean number of events of a live worker, or single one where Poisson does not fit."""
        own = [self.curves[rank].longest for rank in np.flatnonzero(live).tolist() if rank in self.curves]
        return max([float(self.lambda_s[live].max(initial=0.0)) / self.event_s, *own])


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """tau, and how well it is known."""

    event_s: float
    freedom: float  # degrees of freedom of its estimate; infinite where it was not estimated


def fit(times_s: FloatArray, cut: BoolArray, silent_s: FloatArray | None = None) -> Estimate:
    """Fit the model to first-block times (n, window), oldest first, NaN where unknown; `cut` marks lower bounds.

    `silent_s` (n,) adds one lower bound for each worker where it is above 0.
    """
    service_s = estimate_service(times_s, cut)
    blocking_s = np.maximum(times_s - service_s, 0.0)
    unit, fits = _unit(blocking_s, cut, fallback_s=EVENT_SHARE * service_s)
    counts = in_events(blocking_s, cut, unit.event_s)
    silent = np.full(len(cut), np.nan)
    if silent_s is not None:
        silent = np.where(silent_s > service_s, (silent_s - service_s) / unit.event_s + TIE, np.nan)
        counts = np.column_stack((counts, silent))
        cut = np.column_stack((cut, np.ones(len(cut), dtype=np.bool_)))
    rate, blocks = poisson_rates(counts, cut, np.maximum(fits.rate, 1e-3))
    told = _less_by_unit(counts, cut, rate, blocks, unit) / fits.excess
    low, high = interval(rate, told, unit.freedom)
    return Estimate(
        service_s=service_s,
        event_s=unit.event_s,
        event_error=float(np.sqrt(2 / max(unit.freedom, 2.0))),
        lambda_s=unit.event_s * rate,
        low_s=unit.event_s * low,
        high_s=unit.event_s * high,
        blocks=blocks,
        dispersion=fits.dispersion,
        poisson=fits.poisson,
        curves={rank: own for rank, own in fits.curves.items() if not silent[rank] > own.longest},
    )


def _unit(blocking_s: FloatArray, cut: BoolArray, *, fallback_s: float) -> tuple[Unit, Fits]:
    """tau of the workers that have one in common, and which these are."""
    unit = estimate_event(blocking_s, cut, fallback_s=fallback_s)
    aside = np.any(_outliers(blocking_s, cut, fallback_s), axis=1)
    fits = check(in_events(blocking_s, cut, unit.event_s), cut, aside=np.asarray(aside))
    if fits.poisson.all():
        return unit, fits
    unit = estimate_event(blocking_s[fits.poisson], cut[fits.poisson], fallback_s=fallback_s)
    return unit, describe(in_events(blocking_s, cut, unit.event_s), cut, fits.poisson)


def in_events(blocking_s: FloatArray, cut: BoolArray, event_s: float) -> FloatArray:
    """Blocking times in units of tau; whoever was cut off after c units had blocked for more, or equally long."""
    return np.asarray(blocking_s / event_s + TIE * cut)


def _less_by_unit(counts: FloatArray, cut: BoolArray, rate: FloatArray, blocks: FloatArray, unit: Unit) -> FloatArray:
    """Information `blocks` less what is lost because the unit is estimated, too.

    A mean of whole observations does not depend on the unit; what a lower bound adds to the mean does.
    """
    rows = np.flatnonzero(cut.any(axis=1) & (rate > 0))
    if not np.isfinite(unit.freedom) or not rows.size:
        return blocks
    bounds = np.where(cut[rows], TIE + (counts[rows] - TIE) / STEP, counts[rows] / STEP)
    moved = STEP * poisson_rates(bounds, cut[rows], rate[rows], ROUGHLY)[0]
    slope = (moved - rate[rows]) / np.log(STEP)
    less = blocks.copy()
    less[rows] = rate[rows] / (rate[rows] / np.maximum(blocks[rows], 1e-3) + slope**2 * 2 / unit.freedom)
    return less


def estimate_service(times_s: FloatArray, cut: BoolArray) -> float:
    """s: a low quantile of all workers' times, at most NOISE above the smallest; 0 while nothing is known.

    The quantile lets a single odd report move s by little; the bound keeps it from rising when everyone is blocked.
    """
    whole = times_s[~cut & ~np.isnan(times_s)]
    if not whole.size:
        return 0.0
    return float(min(np.quantile(whole, LOW_QUANTILE, method="lower"), (1 + NOISE) * whole.min()))


def estimate_event(blocking_s: FloatArray, cut: BoolArray, *, fallback_s: float) -> Unit:
    """tau: variance over mean of the blocking times (n, window), pooled over workers; `fallback_s` without blocking.

    The variance is half the mean square of successive differences: a worker that changes from fast to slow adds one
    large difference, not a second level. What was cut off enters by its mean and variance given that it was, under
    the tau that comes out: the fixed point is looked for by the secant method in log tau. One event lasts no longer
    than the longest blocking that was seen to its end.
    """
    blocking_s = np.where(_outliers(blocking_s, cut, fallback_s), np.nan, blocking_s)
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


def _outliers(blocking_s: FloatArray, cut: BoolArray, least_s: float) -> BoolArray:
    """Marks each worker's largest value where it stands alone: one long pause must not become the unit of all.

    One event among blocks without any stands alone, too: below OUTLIER * `least_s` nothing is marked.
    """
    filled = np.where(cut | np.isnan(blocking_s), 0.0, blocking_s)
    if filled.shape[1] < 2:
        return np.zeros(filled.shape, dtype=np.bool_)
    second, largest = np.partition(filled, -2, axis=1)[:, -2:].T
    alone = largest > OUTLIER * np.maximum(second, least_s)
    return np.asarray(alone[:, None] & (filled == largest[:, None]))
