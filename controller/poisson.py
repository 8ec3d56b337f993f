"""Rates of Poisson counts of which some are only lower bounds: maximum likelihood, information, intervals.

Pure functions of arrays; a row is a worker. Counts need not be whole numbers: they are measured times in units of
tau. Between whole numbers the tail P(N >= c) is interpolated linearly.
"""

import numpy as np
from scipy import special

from controller.measure import BoolArray, FloatArray

CONFIDENCE = 0.95
"""Of the intervals."""

UNSEEN_EXPOSURE = 0.1
"""Blocks' worth of rate penalty for a worker of which only lower bounds are known: its likelihood has no maximum."""

REACH = 8.0
"""Standard deviations from the mean beyond which a Poisson count is taken to be impossible."""

TAIL_MIN = 1e-12
"""Of an interval: a unit that is hardly known has wider tails than any number says."""

TINY = 1e-280
"""A tail below this is not divided by."""


def poisson_rates(
    counts: FloatArray, cut: BoolArray, start: FloatArray | None = None, settled: float = 1e-4
) -> tuple[FloatArray, FloatArray]:
    """Maximum-likelihood rates (n,) of Poisson counts (n, window) and the information in them, in whole observations.

    NaN is no observation; a cut count c says N >= c. A worker without observations gets the mean rate of the others
    and 0 observations. `start` (n,) is where to begin looking, `settled` the relative step
    that ends it; the error left is about its square.
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
        begin = None if start is None else start[rows]
        rate[rows], blocks[rows] = _censored_rates(total[rows], exposure[rows], bounds, begin, settled)
    unknown = blocks == 0
    if unknown.any() and not unknown.all():
        rate[unknown] = rate[~unknown].mean()
    return rate, blocks


def _censored_rates(
    total: FloatArray, exposure: FloatArray, bounds: FloatArray, start: FloatArray | None, settled: float
) -> tuple[FloatArray, FloatArray]:
    """Newton's method on the score, in log rate; `bounds` (rows, window) holds c of N >= c, NaN elsewhere.

    The score total/mu - exposure + sum h_c(mu), h_c = d log P(N >= c) / d mu, falls strictly: its root is the maximum.
    """
    exposure = np.where(exposure > 0, exposure, UNSEEN_EXPOSURE)
    observations = exposure + np.sum(~np.isnan(bounds), axis=1)
    guess = (total + np.nansum(bounds, axis=1)) / observations if start is None else start
    rate = np.maximum(guess, 1e-9)
    for _ in range(40):
        score, slope = _score(rate, total, exposure, bounds)
        step = np.clip(-score / (slope * rate), -1.0, 1.0)
        rate = rate * np.exp(step)
        if np.abs(step).max() < settled:
            break
    return rate, np.maximum(-slope * rate, 1e-3)


def _score(
    rate: FloatArray, total: FloatArray, exposure: FloatArray, bounds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """First and second derivative of the log-likelihood at `rate` (rows,)."""
    mu = rate[:, None]
    least = np.floor(bounds)
    share = bounds - least
    before = _mass(least - 1, mu)  # d P(N >= c) / d mu = P(N = c - 1)
    at = before * mu / np.maximum(least, 1.0)
    at = np.where(least == 0, np.exp(-mu), at)
    tail = special.gammainc(np.maximum(least, 1e-300), mu) - share * at  # gammainc(c, mu) = P(N >= c)
    before2 = np.where(least >= 2, before * (least - 1) / mu, 0.0)
    first = (1 - share) * before + share * at
    second = (1 - share) * (before2 - before) + share * (before - at)
    usable = tail > TINY
    divisor = np.where(usable, tail, 1.0)
    hazard = np.where(usable, first / divisor, bounds / mu)
    bend = np.where(usable, second / divisor - hazard**2, -bounds / mu**2)
    score = total / rate - exposure + np.nansum(hazard, axis=1)
    slope = -total / rate**2 + np.nansum(bend, axis=1)
    return score, np.minimum(slope, -1e-300)


def poisson_done(events: FloatArray, rate: FloatArray) -> FloatArray:
    """P(N_i <= m) (n, points) at ascending whole `events` m (points,).

    As scipy's pdtr; but where the points are 0, 1, 2, ... the probabilities are added up, and beyond only those are
    asked for that are neither 0 nor 1.
    """
    mu = rate[:, None]
    dense = int(np.argmin(np.append(events == np.arange(len(events)), False)))
    near, far = events[:dense], events[dense:]
    done = np.empty((len(rate), len(events)))
    np.cumsum(np.exp(special.xlogy(near, mu) - mu - special.gammaln(near + 1)), axis=1, out=done[:, :dense])
    reach = REACH * (np.sqrt(mu) + 2)
    done[:, dense:] = far > mu
    open_ = np.abs(far - mu) < reach
    done[:, dense:][open_] = special.pdtr(
        np.broadcast_to(far, open_.shape)[open_], np.broadcast_to(mu, open_.shape)[open_]
    )
    return np.minimum(done, 1.0)


def _mass(counts: FloatArray, mu: FloatArray) -> FloatArray:
    """P(N = count), 0 below 0, for whole counts."""
    inside = np.maximum(counts, 0.0)
    return np.where(counts < 0, 0.0, np.exp(inside * np.log(mu) - mu - special.gammaln(inside + 1)))


def imputed(counts: FloatArray, cut: BoolArray, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and variance (n, window) of each count, given what is known of it: itself and 0 where it is whole.

    From E[N; N >= c] = mu P(N >= c - 1) and E[N (N - 1); N >= c] = mu^2 P(N >= c - 2).
    """
    lower = cut & (counts > 0)
    mean, variance = counts.copy(), np.where(np.isnan(counts), np.nan, 0.0)
    bounds = counts[lower]
    mu = np.maximum(np.broadcast_to(rate[:, None], counts.shape)[lower], 1e-9)
    tail = _tail(bounds, mu)
    usable = tail > TINY
    divisor = np.where(usable, tail, 1.0)
    first = mu * _tail(bounds - 1, mu) / divisor
    second = mu**2 * _tail(bounds - 2, mu) / divisor
    mean[lower] = np.where(usable, first, bounds)
    variance[lower] = np.where(usable, np.maximum(second + first - first**2, 0.0), 0.0)
    return mean, variance


def _tail(bounds: FloatArray, mu: FloatArray) -> FloatArray:
    """P(N >= c), linear in c between whole numbers, 1 below 0."""
    least = np.floor(bounds)
    above = np.where(least >= 0, special.gammainc(np.maximum(least + 1, 1.0), mu), 1.0)
    here = np.where(least >= 1, special.gammainc(np.maximum(least, 1.0), mu), 1.0)
    return np.asarray(here + (bounds - least) * (above - here))


def interval(rate: FloatArray, blocks: FloatArray, freedom: float = np.inf) -> tuple[FloatArray, FloatArray]:
    """The 95 % interval of each rate (n,); (0, inf) where nothing is known.

    Limits of the mean of a total count X are Gamma quantiles of shape X + 1/2, which lie within a third of an event of
    the mid-P limits (H. O. Lancaster, Significance tests in discrete distributions, JASA 56 (1961)): Garwood's exact
    limits, shapes X and X + 1, cover more often than they say when X is small. `freedom`: the degrees of freedom with
    which the unit of the counts is known; the tails are widened as Student's are against the normal's.
    """
    tail = (1 - CONFIDENCE) / 2
    if np.isfinite(freedom):
        tail = max(float(special.ndtr(special.stdtrit(freedom, tail))), TAIL_MIN)
    events = rate * blocks
    exposure = np.where(blocks > 0, blocks, np.nan)
    low = np.where(events > 1e-9, special.gammaincinv(events + 0.5, tail), 0.0) / exposure
    high = special.gammainccinv(events + 0.5, tail) / exposure
    return np.nan_to_num(np.minimum(low, rate), nan=0.0), np.nan_to_num(high, nan=np.inf)
