"""Estimates rates of Poisson counts, some of which are lower bounds: maximum likelihood, information, intervals.

Pure functions of arrays; a row is a worker. Counts need not be whole numbers, because they are measured times in units
of tau. Between whole numbers the tail P(N >= c) is interpolated linearly.
"""

import functools
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kofn_controller.estimate.measurements import BoolArray, FloatArray

CONFIDENCE = 0.95
"""The confidence level of the intervals."""

INTERVALS = 256
"""Maximum number of intervals that are computed; if more are wanted, all are interpolated."""

TIE = 0.5
"""Added to a lower bound: an observation that was cut off at a whole count may have been that count or a later one."""

UNSEEN_EXPOSURE = 0.1
"""Exposure, in blocks, that is added for a worker with lower bounds only: without it the worker's likelihood has no
maximum."""

BEYOND = 200
"""Maximum difference between a drawn count and its bound."""

TINY = 1e-280
"""Smallest tail probability that is used as a divisor."""

HAZARDS = 2048
"""Minimum number of hazards that are looked up in a table instead of computed; the error is at most 0.0003."""

TABLE_COUNTS, TABLE_ROOTS, TABLE_STEPS = 256, 16, 32
"""Size of the table: whole counts below TABLE_COUNTS; square roots of rates up to TABLE_ROOTS, in TABLE_STEPS steps a
unit."""

TAIL = 9.0
"""Standard deviations above the mean that almost no Poisson count exceeds."""

REACH = 8.0
"""Standard deviations from the mean beyond which a Poisson count is taken to be impossible."""

TAIL_MIN = 1e-12
"""Least tail probability of an interval, for a tau that is hardly known."""


def poisson_rates(
    counts: FloatArray, cut: BoolArray, start: FloatArray | None = None, settled: float = 3e-3
) -> tuple[FloatArray, FloatArray]:
    """Return the maximum-likelihood rates (n,) of Poisson counts (n, window), and their information in uncensored
    observations (n,).

    A count of NaN means that there is no observation; a count c marked by `cut` means N >= c. A worker without
    observations gets the mean rate of the others, and the information 0. The search begins at the rates `start` (n,)
    and ends when a step of Newton's method changes each rate by a share below `settled`; the remaining relative error
    is about the square of the last change.
    """
    known = ~np.isnan(counts)
    lower = cut & known & (counts > 0)  # N >= 0 always holds
    whole = known & ~cut
    total = np.sum(counts, axis=1, where=whole)
    exposure = whole.sum(axis=1).astype(np.float64)
    rate = total / np.maximum(exposure, 1)
    blocks = exposure.copy()
    rows = np.flatnonzero(lower.any(axis=1))
    if rows.size:
        begin = None if start is None else start[rows]
        bounds = CountBounds.of(counts[rows], lower[rows])
        rate[rows], blocks[rows] = _censored_rates(total[rows], exposure[rows], bounds, begin, settled)
    unknown = blocks == 0
    if unknown.any() and not unknown.all():
        rate[unknown] = rate[~unknown].mean()
    return rate, blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBounds:
    """Lower bounds N >= c with c = least + share, one for each entry."""

    row: NDArray[np.int64]  # the worker's row
    least: FloatArray  # whole numbers
    share: FloatArray  # 0 to 1

    @classmethod
    def of(cls, counts: FloatArray, lower: BoolArray) -> Self:
        """Take the bounds among the counts (n, window) that `lower` marks."""
        row, column = np.nonzero(lower)
        least = np.floor(counts[row, column])
        return cls(row=row, least=least, share=counts[row, column] - least)

    def of_rows(self, wanted: BoolArray) -> "CountBounds":
        """Return the bounds of the wanted rows, with rows numbered from 0."""
        kept = wanted[self.row]
        row = (np.cumsum(wanted) - 1)[self.row[kept]]
        return CountBounds(row=row, least=self.least[kept], share=self.share[kept])

    def sums(self, values: FloatArray, rows: int) -> FloatArray:
        """Sum the entries' values by row (rows,)."""
        return np.asarray(np.bincount(self.row, values, minlength=rows), dtype=np.float64)


def _censored_rates(
    total: FloatArray, exposure: FloatArray, bounds: CountBounds, start: FloatArray | None, settled: float
) -> tuple[FloatArray, FloatArray]:
    """Find the rates by Newton's method on the score, in log rate; the search of a row ends when its step is small.

    The score total/mu - exposure + sum h_c(mu), h_c = d log P(N >= c) / d mu, falls strictly: its root is the maximum.
    """
    rows = len(total)
    exposure = np.where(exposure > 0, exposure, UNSEEN_EXPOSURE)
    observations = exposure + bounds.sums(np.ones_like(bounds.share), rows)
    guess = (total + bounds.sums(bounds.least + bounds.share, rows)) / observations if start is None else start
    rate, slope = np.maximum(guess, 1e-9), np.empty(rows)
    left = np.ones(rows, np.bool_)
    for _ in range(40):
        now = np.flatnonzero(left)
        score, slope[now] = _score(rate[now], total[now], exposure[now], bounds if left.all() else bounds.of_rows(left))
        step = np.clip(-score / (slope[now] * rate[now]), -1.0, 1.0)
        rate[now] *= np.exp(step)
        left[now] = np.abs(step) >= settled
        if not left.any():
            break
    return rate, np.maximum(-slope * rate, 1e-3)


def _score(
    rate: FloatArray, total: FloatArray, exposure: FloatArray, bounds: CountBounds
) -> tuple[FloatArray, FloatArray]:
    """Return the first and second derivatives of the log-likelihood at `rate` (rows,).

    The derivatives follow from the hazard P(N = m) / P(N >= m), from P(N = m - 1) = m / mu P(N = m), and from the tail
    P(N >= m) - share P(N = m).
    """
    least, share = bounds.least, bounds.share
    here = hazard(least, rate, bounds.row)
    step = least / rate[bounds.row]
    before = here * step
    more, less = share * here, (1 - share) * before
    scale = 1 / (1 - more)
    first = (less + more) * scale
    second = (less * (step - 1 - step / np.maximum(least, 1.0)) + share * before - more) * scale
    score = total / rate - exposure + bounds.sums(first, len(rate))
    slope = -total / rate**2 + bounds.sums(second - first**2, len(rate))
    return score, np.minimum(slope, -1e-300)


def hazard(counts: FloatArray, rates: FloatArray, row: NDArray[np.int64]) -> FloatArray:
    """Return P(N = m) / P(N >= m) for whole counts m >= 0 (any,). `rates` (rows,) has the rates, all above 0; `row`
    (any,) has the place of each count's rate in `rates`.
    """
    if counts.size < HAZARDS:
        return _hazard(counts, rates[row])
    place = np.minimum(np.sqrt(rates) * TABLE_STEPS, TABLE_ROOTS * TABLE_STEPS - 1e-6)
    left = place.astype(np.int64)
    flat = np.minimum(counts, TABLE_COUNTS - 1).astype(np.int64) * (TABLE_ROOTS * TABLE_STEPS + 1) + left[row]
    table = _hazard_table()
    below = table[flat]
    found = below + (place - left)[row] * (table[flat + 1] - below)
    if counts.max() >= TABLE_COUNTS or rates.max() >= TABLE_ROOTS**2:
        outside = (counts >= TABLE_COUNTS) | (rates >= TABLE_ROOTS**2)[row]
        found[outside] = _hazard(counts[outside], rates[row[outside]])
    return np.asarray(found)


def _hazard(counts: FloatArray, rates: FloatArray) -> FloatArray:
    """Compute hazards by the incomplete gamma function. Far out in the tail, where the incomplete gamma function is 0,
    the sum of the tail's first terms and a geometric series replaces it."""
    mass = poisson_mass(counts, rates)
    tail = np.where(counts > 0, special.gammainc(np.maximum(counts, 1.0), rates), 1.0)
    beyond = 1 / (1 - np.minimum(rates / (counts + 4), 0.9))  # P(N >= m + 3) in units of P(N = m + 3)
    for more in (3, 2, 1):
        beyond = 1 + rates / (counts + more) * beyond
    return np.asarray(np.where(tail > TINY, mass / np.maximum(tail, TINY), 1 / beyond))


@functools.lru_cache(maxsize=1)
def _hazard_table() -> FloatArray:
    """Return the hazard of every count and root as a flat array, a row for each count."""
    rates = (np.arange(TABLE_ROOTS * TABLE_STEPS + 1) / TABLE_STEPS) ** 2
    return _hazard(np.arange(TABLE_COUNTS, dtype=np.float64)[:, None], np.maximum(rates, 1e-12)[None, :]).ravel()


def poisson_mass(counts: FloatArray, rates: FloatArray) -> FloatArray:
    """Return P(N = count) for counts >= 0; counts and rates broadcast."""
    return np.asarray(np.exp(special.xlogy(counts, rates) - rates - special.gammaln(counts + 1)))


def farthest(rate: float) -> int:
    """Return a count that almost no Poisson count of this rate exceeds."""
    return int(rate + TAIL * np.sqrt(rate) + 16)


def poisson_done(events: FloatArray, rate: FloatArray) -> FloatArray:
    """Return P(N_i <= m) (n, points) at ascending whole `events` m (points,), as scipy's pdtr does, but faster.

    At the points 0, 1, 2, ... probabilities are added up; later ones are computed only if they are neither 0 nor 1.
    """
    mu = rate[:, None]
    dense = int(np.argmin(np.append(events == np.arange(len(events)), False)))
    near, far = events[:dense], events[dense:]
    done = np.empty((len(rate), len(events)))
    np.cumsum(poisson_mass(near, mu), axis=1, out=done[:, :dense])
    reach = REACH * (np.sqrt(mu) + 2)
    done[:, dense:] = far > mu
    open_ = np.abs(far - mu) < reach
    done[:, dense:][open_] = special.pdtr(
        np.broadcast_to(far, open_.shape)[open_], np.broadcast_to(mu, open_.shape)[open_]
    )
    return np.minimum(done, 1.0)


def imputed(counts: FloatArray, cut: BoolArray, rate: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the conditional mean and variance (n, window) of each count. An uncensored count has itself as mean, and
    the variance 0.

    Mean and variance follow from E[N; N >= c] = mu P(N >= c - 1) and E[N (N - 1); N >= c] = mu^2 P(N >= c - 2).
    """
    lower = cut & (counts > 0)
    mean, variance = counts.copy(), np.where(np.isnan(counts), np.nan, 0.0)
    if not lower.any():
        return mean, variance
    bounds, rates = CountBounds.of(counts, lower), np.maximum(rate, 1e-9)
    least, share, mu = bounds.least, bounds.share, rates[bounds.row]
    here = hazard(least, rates, bounds.row)
    before = here * least / mu
    tail = 1 - share * here
    first = mu * (1 + (1 - share) * before) / tail
    second = mu**2 * (1 + before + (1 - share) * before * (least - 1) / mu) / tail
    mean[lower] = first
    variance[lower] = np.maximum(second + first - first**2, 0.0)
    return mean, variance


def drawn_beyond(bounds: FloatArray, rates: FloatArray, shares: FloatArray) -> FloatArray:
    """Return whole Poisson counts N, given that N >= bound (any,). Each is a quantile: `shares` (any,), 0 to 1, is the
    share of all counts beyond the bound that are larger.

    If a bound lies between two whole counts, the lower count keeps only a part of its probability, by linear
    interpolation. No count exceeds its bound by more than BEYOND.
    """
    count = np.floor(bounds)
    mass = poisson_mass(count, rates)
    above = np.where(count > 0, special.gammainc(np.maximum(count, 1.0), rates), 1.0)  # P(N >= count)
    wanted = shares * (above - (bounds - count) * mass)
    for _ in range(BEYOND):
        above = above - mass
        on = above >= wanted
        if not on.any():
            break
        count = np.where(on, count + 1, count)
        mass = np.where(on, mass * rates / np.maximum(count, 1.0), 0.0)
    return np.where(wanted > TINY, count, np.ceil(bounds))


def interval(rate: FloatArray, blocks: FloatArray, freedom: float = np.inf) -> tuple[FloatArray, FloatArray]:
    """Return the 95 % interval of each rate (n,); 0 and infinity if nothing is known.

    Limits of the mean of a total count X are Gamma quantiles of shape X + 1/2, which lie within a third of an event of
    the mid-P limits (H. O. Lancaster, Significance tests in discrete distributions, JASA 56 (1961)). Garwood's exact
    limits, shapes X and X + 1, are too wide when X is small. `freedom` is the number of degrees of freedom of the
    estimate of tau; the interval is wider by the ratio of Student's quantile to the normal quantile.
    """
    tail = (1 - CONFIDENCE) / 2
    if np.isfinite(freedom):
        tail = max(float(special.ndtr(special.stdtrit(freedom, tail))), TAIL_MIN)
    events = rate * blocks
    exposure = np.where(blocks > 0, blocks, np.nan)
    low, high = (limit / exposure for limit in _limits(events, tail))
    return np.nan_to_num(np.minimum(low, rate), nan=0.0), np.nan_to_num(high, nan=np.inf)


def _limits(events: FloatArray, tail: float) -> tuple[FloatArray, FloatArray]:
    """Return confidence limits of the means of total counts (n,). If there are very many counts, the limits are
    interpolated, with an error of less than 0.01 events."""
    if len(events) > INTERVALS:
        roots = np.sqrt(events)
        few = np.linspace(0.0, roots.max() + 1e-9, INTERVALS)
        return tuple(np.interp(roots, few, limit) for limit in _limits(few**2, tail))  # type: ignore[return-value]
    low = np.where(events > 1e-9, special.gammaincinv(events + 0.5, tail), 0.0)
    return low, special.gammainccinv(events + 0.5, tail)
