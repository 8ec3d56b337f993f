"""Rates of Poisson counts of which some are only lower bounds: maximum likelihood, information, intervals.

Pure functions of arrays; a row is a worker. Counts need not be whole numbers: they are measured times in units of
tau. Between whole numbers the tail P(N >= c) is interpolated linearly.
"""

import functools
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kofn.controller.estimate.measurements import BoolArray, FloatArray

CONFIDENCE = 0.95
"""The confidence level of the intervals."""

INTERVALS = 256
"""From so many intervals on they are interpolated between that number of them."""

TIE = 0.5
"""Added to the count at which an observation was cut off: a tie may go either way, and a moment between two counts
rules the lower one out."""

UNSEEN_EXPOSURE = 0.1
"""Blocks' worth of rate penalty for a worker of which only lower bounds are known: its likelihood has no maximum."""

BEYOND = 200
"""Most counts beyond a bound that are drawn."""

TINY = 1e-280
"""A tail below this is not divided by."""

HAZARDS = 2048
"""From so many hazards on they are looked up in a table: within 0.0003 of themselves."""

TABLE_COUNTS, TABLE_ROOTS, TABLE_STEPS = 256, 16, 32
"""The table has whole counts below the first, square roots of rates up to the second, so many steps a unit."""

TAIL = 9.0
"""Standard deviations above the mean that next to no Poisson count exceeds."""

REACH = 8.0
"""Standard deviations from the mean beyond which a Poisson count is taken to be impossible."""

TAIL_MIN = 1e-12
"""Least tail probability of an interval: a hardly known unit has wider tails than any number says."""


def poisson_rates(
    counts: FloatArray, cut: BoolArray, start: FloatArray | None = None, settled: float = 3e-3
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
        begin = None if start is None else start[rows]
        bounds = CountBounds.of(counts[rows], lower[rows])
        rate[rows], blocks[rows] = _censored_rates(total[rows], exposure[rows], bounds, begin, settled)
    unknown = blocks == 0
    if unknown.any() and not unknown.all():
        rate[unknown] = rate[~unknown].mean()
    return rate, blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBounds:
    """Lower bounds c = least + share, one an entry: N >= c."""

    row: NDArray[np.int64]
    least: FloatArray  # whole
    share: FloatArray  # 0 to 1

    @classmethod
    def of(cls, counts: FloatArray, lower: BoolArray) -> Self:
        """Those that are marked of (n, window)."""
        row, column = np.nonzero(lower)
        least = np.floor(counts[row, column])
        return cls(row=row, least=least, share=counts[row, column] - least)

    def of_rows(self, wanted: BoolArray) -> "CountBounds":
        """Those of some rows, which are numbered anew."""
        kept = wanted[self.row]
        row = (np.cumsum(wanted) - 1)[self.row[kept]]
        return CountBounds(row=row, least=self.least[kept], share=self.share[kept])

    def sums(self, values: FloatArray, rows: int) -> FloatArray:
        """Sum the entries' values by row (rows,)."""
        return np.asarray(np.bincount(self.row, values, minlength=rows), dtype=np.float64)


def _censored_rates(
    total: FloatArray, exposure: FloatArray, bounds: CountBounds, start: FloatArray | None, settled: float
) -> tuple[FloatArray, FloatArray]:
    """Newton's method on the score, in log rate, each row until it has settled.

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
    """First and second derivative of the log-likelihood at `rate` (rows,).

    With q = P(N = m) / P(N >= m), P(N = m - 1) = m / mu P(N = m) and the tail P(N >= m) - share P(N = m).
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
    """P(N = m) / P(N >= m) for whole counts m >= 0 (any,), each of the rate > 0 in a row of `rates` (rows,)."""
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
    """By the incomplete gamma function; far out in the tail by its first terms, and a geometric series of the rest."""
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
    """P(N = count) for counts >= 0; both broadcast."""
    return np.asarray(np.exp(special.xlogy(counts, rates) - rates - special.gammaln(counts + 1)))


def farthest(rate: float) -> int:
    """A count that next to no Poisson count of this rate exceeds."""
    return int(rate + TAIL * np.sqrt(rate) + 16)


def poisson_done(events: FloatArray, rate: FloatArray) -> FloatArray:
    """P(N_i <= m) (n, points) at ascending whole `events` m (points,).

    As scipy's pdtr; but where the points are 0, 1, 2, ... the probabilities are added up, and beyond only those are
    asked for that are neither 0 nor 1.
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
    """Return the conditional mean and variance (n, window) of each count; a whole count's are itself and 0.

    From E[N; N >= c] = mu P(N >= c - 1) and E[N (N - 1); N >= c] = mu^2 P(N >= c - 2).
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
    """Poisson counts given N >= c (any,), whole, each exceeded by its share, 0 to 1, of all beyond its bound.

    Of a bound between two whole counts the lower one has so much less of its chance. At most BEYOND the bound.
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
    low, high = (limit / exposure for limit in _limits(events, tail))
    return np.nan_to_num(np.minimum(low, rate), nan=0.0), np.nan_to_num(high, nan=np.inf)


def _limits(events: FloatArray, tail: float) -> tuple[FloatArray, FloatArray]:
    """Return confidence limits of the means of total counts (n,); very many are interpolated, to 0.01 of an event."""
    if len(events) > INTERVALS:
        roots = np.sqrt(events)
        few = np.linspace(0.0, roots.max() + 1e-9, INTERVALS)
        return tuple(np.interp(roots, few, limit) for limit in _limits(few**2, tail))  # type: ignore[return-value]
    low = np.where(events > 1e-9, special.gammaincinv(events + 0.5, tail), 0.0)
    return low, special.gammainccinv(events + 0.5, tail)
