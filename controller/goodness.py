"""Whether a worker's blocking events are Poisson's; and its own distribution where they are not.

A Poisson count's variance is its mean. Each worker's ratio of the two is held against that of all others together: the
ratio of two such ratios follows an F distribution. Pure functions of arrays; a row is a worker, counts are in units of
tau.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from controller.measure import BoolArray, FloatArray
from controller.poisson import TINY, imputed, poisson_rates

FALSE_ALARMS = 0.01
"""Most of the truly Poisson windows, as a share, that are called something else."""

EXCESS_MIN = 0.05
"""Least variance, as a share of Poisson's, that an interval rests on."""

PAIRS_MIN = 3
"""Differences of successive times that a worker must have for its variance to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One worker's own distribution of blocking events: Kaplan and Meier's, in units of tau.

    Beyond the largest lower bound nothing is known: there the fitted Poisson distribution's tail goes on.
    E. L. Kaplan, P. Meier, Nonparametric estimation from incomplete observations, JASA 53 (1958).
    """

    counts: FloatArray  # whole observations
    masses: FloatArray  # their probabilities
    left: float  # probability beyond `bound`
    bound: float
    rate: float

    @property
    def longest(self) -> float:
        """The largest that it reaches: observed, or to be expected beyond the largest lower bound."""
        return float(max(self.counts.max(initial=0.0), (self.bound + self.rate) * (self.left > 0)))

    def done(self, events: FloatArray) -> FloatArray:
        """P(N <= m) at whole `events` m (points,); a count between two whole ones is shared, its mean is kept."""
        seen = np.clip(events[:, None] + 1 - self.counts, 0.0, 1.0) @ self.masses
        if self.left <= 0:
            return np.asarray(seen)
        tail = special.pdtrc(events, self.rate) / max(float(special.pdtrc(self.bound, self.rate)), TINY)
        beyond = np.where(events <= self.bound, 1.0, np.minimum(tail, 1.0))
        return np.asarray(seen + self.left * (1 - beyond))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """What the check found of n workers."""

    rate: FloatArray  # (n,) events a block
    dispersion: FloatArray  # (n,) variance / mean in units of tau: 1 where Poisson fits, NaN where unknown
    poisson: BoolArray  # (n,) True too where too little is known
    curves: Mapping[int, Curve]  # of the others

    @property
    def excess(self) -> FloatArray:
        """Variance (n,) as a multiple of Poisson's, where that does not fit: its interval is as much wider, squared."""
        own = np.maximum(np.nan_to_num(self.dispersion, nan=1.0), EXCESS_MIN)
        return np.where(self.poisson, 1.0, own)


def variances(
    counts: FloatArray, cut: BoolArray, rate: FloatArray, blocks: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Each worker's variance (n,), and the weight of its ratio to the mean; 0 where that is not known.

    The variance is half the mean square of successive differences; what was cut off enters by its mean and variance
    given that it was. A Poisson variance so estimated has the variance mu (3 mu + 1) / pairs.
    """
    mean, spread = imputed(counts, cut, rate)
    squares = np.diff(mean, axis=1) ** 2 + spread[:, 1:] + spread[:, :-1]
    pairs = np.sum(~np.isnan(squares), axis=1)
    variance = 0.5 * np.nansum(squares, axis=1) / np.maximum(pairs, 1)
    whole = np.sum(~cut & ~np.isnan(counts), axis=1)
    told = np.where((pairs >= PAIRS_MIN) & (whole > PAIRS_MIN), np.minimum(pairs, blocks), 0.0)
    return variance, told / (3 * rate + 1)


def check(counts: FloatArray, cut: BoolArray, aside: BoolArray) -> Fits:
    """Test each worker of (n, window); those set `aside` (n,) are tested, but no one is held against them."""
    return _fits(counts, cut, None, aside)


def describe(counts: FloatArray, cut: BoolArray, poisson: BoolArray) -> Fits:
    """The same in another unit, for what was found in the first one."""
    return _fits(counts, cut, poisson, ~poisson)


def _fits(counts: FloatArray, cut: BoolArray, poisson: BoolArray | None, aside: BoolArray) -> Fits:
    """The numbers of (n, window), and the curves of those that are not `poisson`; tested where that is None."""
    rate, blocks = poisson_rates(counts, cut)
    variance, weight = variances(counts, cut, rate, blocks)
    if poisson is None:
        poisson = poisson_fits(variance, rate, weight, aside)
    dispersion = np.full(len(rate), np.nan)
    np.divide(variance, rate, out=dispersion, where=(weight > 0) & (rate > 0))
    curves = {rank: curve(counts[rank], cut[rank], float(rate[rank])) for rank in np.flatnonzero(~poisson).tolist()}
    return Fits(rate=rate, dispersion=dispersion, poisson=poisson, curves=curves)


def poisson_fits(variance: FloatArray, rate: FloatArray, weight: FloatArray, aside: BoolArray) -> BoolArray:
    """False (n,) where a worker's variance / mean is not the others', True also where it is not known.

    The worst is taken out first and the rest tested again, so that one worker does not make all others look odd.
    """
    known = (weight * rate > 0) & np.isfinite(variance)
    fits = np.ones(len(rate), dtype=np.bool_)
    for _ in range(len(rate) // 2):
        among = np.where(known & fits & ~aside, weight, 0.0)
        others = np.sum(among * rate) - among * rate  # half the degrees of freedom
        squares = np.sum(among * variance) - among * variance
        tested = known & fits & (others > 1e-9) & (squares > 1e-12)
        if not tested.any():
            break
        ratio = (variance[tested] / rate[tested]) / (squares[tested] / others[tested])
        freedom, against = 2 * (weight * rate)[tested], 2 * others[tested]
        below = special.fdtr(freedom, against, ratio)
        chance = 2 * np.minimum(below, special.fdtrc(freedom, against, ratio))
        if chance.min() >= FALSE_ALARMS:
            break
        fits[np.flatnonzero(tested)[np.argmin(chance)]] = False
    return fits


def curve(counts: FloatArray, cut: BoolArray, rate: float) -> Curve:
    """Kaplan and Meier's distribution of one worker's counts (window,)."""
    known = ~np.isnan(counts)
    counts, cut = counts[known], cut[known]
    order = np.lexsort((cut, counts))  # of equal ones the whole come first
    counts, cut = counts[order], cut[order]
    survival = np.cumprod(1 - ~cut / np.arange(len(counts), 0, -1))
    masses = -np.diff(survival, prepend=1.0)
    return Curve(
        counts=counts[~cut],
        masses=masses[~cut],
        left=float(survival[-1]),
        bound=float(counts[-1]),
        rate=rate,
    )
