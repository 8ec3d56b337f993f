"""Tests whether each worker's blocking counts have the same dispersion as the other workers' counts. A worker whose
dispersion differs gets a separate distribution.

A Poisson count's variance equals its mean. Each worker's ratio of variance to mean is compared with the ratio of all
others together: the quotient of two such ratios has an F distribution. (`poisson_check` tests all workers against
Poisson's law.) Pure functions of arrays; a row is a worker, counts are in units of tau.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.poisson import poisson_rates
from kofn_controller.estimate.time_scales import variances

FALSE_ALARMS = 0.01
"""Largest share of truly Poisson windows in which the test rejects any worker."""

EXCESS_MIN = 0.05
"""Lower bound of the variance in a confidence interval, as a share of the variance of a Poisson count."""

ONE_BY_ONE = 64
"""Largest number of workers for which the worst one is removed and the others are tested again."""

LIKE = 4.0
"""Used with more than ONE_BY_ONE workers: a worker is like the others if its ratio is within this number of standard
deviations of the median ratio."""

NEAR = 2.5
"""A worker whose ratio is within this number of standard deviations of the common ratio needs no F test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """The result of the check for n workers."""

    rate: FloatArray  # (n,) events in a block
    blocks: FloatArray  # (n,) information in `rate`, in uncensored observations
    dispersion: FloatArray  # (n,) variance / mean in units of tau: 1 where Poisson fits, NaN where unknown
    poisson: BoolArray  # (n,) True where Poisson fits or too little is known
    curves: Curves  # own distributions of the workers that Poisson does not fit

    @property
    def excess(self) -> FloatArray:
        """The variance (n,) as a multiple of a Poisson count's; 1 where Poisson fits. A confidence interval is wider by
        the square root of this multiple.
        """
        own = np.maximum(np.nan_to_num(self.dispersion, nan=1.0), EXCESS_MIN)
        return np.where(self.poisson, 1.0, own)


def check(counts: FloatArray, cut: BoolArray, aside: BoolArray, start: FloatArray | None = None) -> Fits:
    """Fit and test each worker of `counts` (n, window). Workers set `aside` (n,) are tested, but no other worker is
    compared with them. `start` (n,): the rates at which the search begins.
    """
    return _fits(counts, cut, None, aside, start)


def describe(counts: FloatArray, cut: BoolArray, poisson: BoolArray, start: FloatArray) -> Fits:
    """Fit the workers to `counts` (n, window), which are in units of a new tau. The tests are not repeated: `poisson`
    (n,) is their earlier result."""
    return _fits(counts, cut, poisson, ~poisson, start)


def _fits(
    counts: FloatArray, cut: BoolArray, poisson: BoolArray | None, aside: BoolArray, start: FloatArray | None
) -> Fits:
    """Fit `counts` (n, window), and compute curves of the workers that are not `poisson`. If `poisson` is None, test
    the workers first."""
    rate, blocks = poisson_rates(counts, cut, start)
    variance, weight = variances(counts, cut, rate, blocks)
    if poisson is None:
        poisson = poisson_fits(variance, rate, weight, aside)
    dispersion = np.full(len(rate), np.nan)
    np.divide(variance, rate, out=dispersion, where=(weight > 0) & (rate > 0))
    odd = np.flatnonzero(~poisson)
    curves = Curves.of(odd, counts[odd], cut[odd], rate[odd])
    return Fits(rate=rate, blocks=blocks, dispersion=dispersion, poisson=poisson, curves=curves)


def poisson_fits(variance: FloatArray, rate: FloatArray, weight: FloatArray, aside: BoolArray) -> BoolArray:
    """Return an array (n,): False where a worker's variance / mean differs from the others'; True if not, or if
    unknown."""
    known = (weight * rate > 0) & np.isfinite(variance)
    if known.sum() > ONE_BY_ONE:
        return _at_once(variance, rate, weight, known)
    fits = np.ones(len(rate), dtype=np.bool_)
    for _ in range(len(rate) // 2):  # so that one worker does not make all others look odd
        among = np.where(known & fits & ~aside, weight, 0.0)
        others = np.sum(among * rate) - among * rate  # half the degrees of freedom
        squares = np.sum(among * variance) - among * variance
        tested = known & fits & (others > 1e-9) & (squares > 1e-12)
        if not tested.any():
            break
        ratio = (variance[tested] / rate[tested]) / (squares[tested] / others[tested])
        chance = _chance(ratio, 2 * (weight * rate)[tested], 2 * others[tested])
        if chance.min() * tested.sum() >= FALSE_ALARMS:
            break
        fits[np.flatnonzero(tested)[np.argmin(chance)]] = False
    return fits


def _chance(ratio: FloatArray, freedom: FloatArray, against: FloatArray) -> FloatArray:
    """Return the two-sided probability of an F-distributed ratio at least as extreme."""
    below = special.fdtr(freedom, against, ratio)
    return np.asarray(2 * np.minimum(below, special.fdtrc(freedom, against, ratio)))


def _at_once(variance: FloatArray, rate: FloatArray, weight: FloatArray, known: BoolArray) -> BoolArray:
    """Test each of many workers against all workers whose ratio of variance to mean is close to the median. The ratios
    are compared on a scale on which they are nearly normal.

    The scale is the cube root of a chi-squared variable divided by its degrees of freedom (E. B. Wilson, M. M.
    Hilferty, PNAS 17 (1931)).
    """
    spread = 1 / (9 * np.where(known, weight * rate, 1.0))  # 2 / (9 freedom)
    root = np.cbrt(np.where(known, variance / np.maximum(rate, 1e-300), 1.0))
    middle = np.median((root / (1 - spread))[known & (spread < 0.5)])  # the common ratio's root
    like = known & (np.abs(root / middle - 1 + spread) < LIKE * np.sqrt(spread))
    ratio = np.sum((weight * variance)[like]) / np.sum((weight * rate)[like])
    apart = np.flatnonzero(known & (np.abs(root / np.cbrt(ratio) - 1 + spread) > NEAR * np.sqrt(spread)))
    against = np.full(len(apart), 2 * np.sum((weight * rate)[like]))
    fits = np.ones(len(rate), dtype=np.bool_)
    chance = _chance(root[apart] ** 3 / ratio, 2 * (weight * rate)[apart], against)
    fits[apart[chance * known.sum() < FALSE_ALARMS]] = False
    return fits
