"""The model of first-block times: T_i = s + tau * N_i, N_i ~ Poisson(mu_i), lambda_i = tau * mu_i.

s is the block time when nothing blocks, tau the duration of one blocking event, lambda_i worker i's mean blocking time
(docs/CONTROL.md). Pure functions of arrays; knows nothing of workers' names, k, or time.

A Poisson count's variance equals its mean, so var / mean of the blocking times tau * N is tau: the unit is measured,
not chosen. Observations that were cut off (lower bounds) enter the likelihood as survival terms.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from controller.measure import BoolArray, FloatArray

CONFIDENCE = 0.95
"""Of the intervals."""

NOISE = 0.02
"""Share of the smallest time by which s may be above it: timer and scheduler noise, no blocking."""

LOW_QUANTILE = 0.05

EVENT_SHARE = 0.1
"""tau as a share of s where nothing was blocked and no dispersion can be measured."""

EVENT_MIN_S = 1e-4
"""Smallest tau: below it lies the noise of the clocks, and the lattice of times would only grow."""

OUTLIER = 10.0
"""A worker's largest blocking time counts for tau only when below this many times its second largest."""

PAIRS_MIN = 3
"""Differences of successive times that a worker must have to count for tau."""

UNSEEN_EXPOSURE = 0.1
"""Blocks' worth of rate penalty for a worker of which only lower bounds are known: its likelihood has no maximum."""


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


def fit(times_s: FloatArray, cut: BoolArray, silent_s: FloatArray | None = None) -> Estimate:
    """Fit the model to first-block times (n, window), oldest first, NaN where unknown; `cut` marks lower bounds.

    `silent_s` (n,) adds one lower bound for each worker where it is above 0.
    """
    service_s = estimate_service(times_s, cut)
    blocking_s = np.maximum(times_s - service_s, 0.0)
    event_s = estimate_event(blocking_s, cut, fallback_s=EVENT_SHARE * service_s)
    counts = blocking_s / event_s
    if silent_s is not None:
        silent = np.where(silent_s > service_s, (silent_s - service_s) / event_s, np.nan)
        counts = np.column_stack((counts, silent))
        cut = np.column_stack((cut, np.ones(len(cut), dtype=np.bool_)))
    rate, blocks = poisson_rates(counts, cut)
    low, high = interval(rate, blocks)
    return Estimate(
        service_s=service_s,
        event_s=event_s,
        lambda_s=event_s * rate,
        low_s=event_s * low,
        high_s=event_s * high,
        blocks=blocks,
        dispersion=dispersion(blocking_s, cut[:, : times_s.shape[1]], event_s),
    )


def estimate_service(times_s: FloatArray, cut: BoolArray) -> float:
    """s: a low quantile of all workers' times, at most NOISE above the smallest; 0 while nothing is known.

    The quantile lets a single odd report move s by little; the bound keeps it from rising when everyone is blocked.
    """
    whole = times_s[~cut & ~np.isnan(times_s)]
    if not whole.size:
        return 0.0
    return float(min(np.quantile(whole, LOW_QUANTILE, method="lower"), (1 + NOISE) * whole.min()))


def estimate_event(blocking_s: FloatArray, cut: BoolArray, *, fallback_s: float) -> float:
    """tau: variance over mean of the blocking times (n, window), the sum over workers of each.

    The variance is half the mean square of successive differences: a worker that changes from fast to slow adds one
    large difference, not a second level. `fallback_s` where no one was blocked.
    """
    blocking_s = np.where(cut | _outliers(blocking_s), np.nan, blocking_s)
    squares = np.diff(blocking_s, axis=1) ** 2
    pairs = np.sum(~np.isnan(squares), axis=1)
    usable = pairs >= PAIRS_MIN
    if not usable.any():
        return max(fallback_s, EVENT_MIN_S)
    variance = 0.5 * np.nansum(squares[usable], axis=1) / pairs[usable]
    mean = np.nanmean(blocking_s[usable], axis=1)
    if mean.sum() <= 0 or variance.sum() <= 0:
        return max(fallback_s, EVENT_MIN_S)
    return float(max(variance.sum() / mean.sum(), EVENT_MIN_S))


def _outliers(blocking_s: FloatArray) -> BoolArray:
    """Marks each worker's largest value where it stands alone: one long pause must not become the unit of all."""
    filled = np.nan_to_num(blocking_s, nan=0.0)
    if filled.shape[1] < 2:
        return np.zeros(filled.shape, dtype=np.bool_)
    second, largest = np.partition(filled, -2, axis=1)[:, -2:].T
    alone = largest > OUTLIER * second
    return np.asarray(alone[:, None] & (filled == largest[:, None]))


def poisson_rates(counts: FloatArray, cut: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Maximum-likelihood rates (n,) of Poisson counts (n, window) and the information in them, in whole observations.

    Counts need not be whole numbers; NaN is no observation; a cut count c says N >= c. A worker without observations
    gets the mean rate of the others and 0 observations.
    """
    known = ~np.isnan(counts)
    lower = cut & known & (counts > 0)  # N >= 0 says nothing
    whole = known & ~cut
    total = np.sum(counts, axis=1, where=whole)
    exposure = whole.sum(axis=1).astype(np.float64)
    rate = total / np.maximum(exposure, 1)
    blocks = exposure.copy()
    rows = np.flatnonzero(lower.any(axis=1))
    if rows.size:
        bounds = np.where(lower, counts, np.nan)[rows]
        rate[rows], blocks[rows] = _censored_rates(total[rows], exposure[rows], bounds)
    unknown = blocks == 0
    if unknown.any() and not unknown.all():
        rate[unknown] = rate[~unknown].mean()
    return rate, blocks


def _censored_rates(total: FloatArray, exposure: FloatArray, bounds: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Newton's method on the score, in log rate; `bounds` (rows, window) holds c of N >= c, NaN elsewhere.

    The score total/mu - exposure + sum h_c(mu), h_c = d log P(N >= c) / d mu, falls strictly: its root is the maximum.
    """
    exposure = np.where(exposure > 0, exposure, UNSEEN_EXPOSURE)
    observations = exposure + np.sum(~np.isnan(bounds), axis=1)
    rate = np.maximum((total + np.nansum(bounds, axis=1)) / observations, 1e-9)
    for _ in range(40):
        score, slope = _score(rate, total, exposure, bounds)
        step = np.clip(-score / (slope * rate), -1.0, 1.0)
        rate = rate * np.exp(step)
        if np.abs(step).max() < 1e-7:
            break
    _, slope = _score(rate, total, exposure, bounds)
    return rate, np.maximum(-slope * rate, 1e-3)


def _score(
    rate: FloatArray, total: FloatArray, exposure: FloatArray, bounds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """First and second derivative of the log-likelihood at `rate` (rows,)."""
    mu = rate[:, None]
    tail = special.gammainc(bounds, mu)  # P(N >= c), also for c between whole numbers
    density = np.exp((bounds - 1) * np.log(mu) - mu - special.gammaln(bounds))
    hazard = np.where(tail > 1e-280, density / np.maximum(tail, 1e-280), bounds / mu)
    score = total / rate - exposure + np.nansum(hazard, axis=1)
    slope = -total / rate**2 + np.nansum(hazard * ((bounds - 1) / mu - 1 - hazard), axis=1)
    return score, np.minimum(slope, -1e-300)


def interval(rate: FloatArray, blocks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Garwood's exact Poisson interval of each rate (n,); (0, inf) where nothing is known.

    F. Garwood, Fiducial limits for the Poisson distribution, Biometrika 28 (1936): limits of the mean of a total
    count X are the Gamma quantiles alpha/2 of shape X and 1 - alpha/2 of shape X + 1.
    """
    tail = (1 - CONFIDENCE) / 2
    events = rate * blocks
    exposure = np.where(blocks > 0, blocks, np.nan)
    low = np.where(events > 0, special.gammaincinv(np.maximum(events, 1e-12), tail), 0.0) / exposure
    high = special.gammaincinv(events + 1, 1 - tail) / exposure
    return np.nan_to_num(low, nan=0.0), np.nan_to_num(high, nan=np.inf)


def dispersion(blocking_s: FloatArray, cut: BoolArray, event_s: float) -> FloatArray:
    """Variance / (tau * mean) of each worker's blocking times (n,): 1 where Poisson fits, NaN below 2 of them."""
    values = np.where(cut, np.nan, blocking_s)
    count = np.sum(~np.isnan(values), axis=1)
    result: NDArray[np.float64] = np.full(len(values), np.nan)
    rows = np.flatnonzero(count >= 2)
    mean = np.nanmean(values[rows], axis=1)
    variance = np.nanvar(values[rows], axis=1, ddof=1)
    result[rows] = np.divide(variance, event_s * mean, out=np.full(len(rows), np.nan), where=mean > 0)
    return result
