"""How much blocking may hide in s: where nobody is ever unblocked, s is the fastest block, and that was blocked, too.

If all workers are always blocked for `more` events than is seen, their counts are larger by so much, and of a Poisson
count nobody has ever seen less than `more`. That it was never less has a chance; what is likely enough may be. Pure
functions, in units of tau.
"""

import numpy as np
from scipy import special

from controller.measure import FloatArray
from controller.poisson import CONFIDENCE

STEPS = 12
"""Bisections between nothing and all of s."""


def hidden_blocking(rates: FloatArray, whole: FloatArray, service: float) -> float:
    """The most that may hide, in units of the tau that was fitted; 0 where somebody is unblocked now and then.

    `rates` (n,) as fitted, `whole` (n,) observations that are no lower bounds, `service` is s / tau.
    """
    seen = (whole > 0) & (rates > 0)
    rates, whole = rates[seen], whole[seen]
    mean = float(np.average(rates, weights=whole)) if len(rates) else 0.0
    if not mean or not _may_hide(_one_event(mean), rates, whole, mean):
        return 0.0
    low, high = _one_event(mean), service
    if _may_hide(high, rates, whole, mean):
        return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _may_hide(middle, rates, whole, mean) else (low, middle)
    return low


def _one_event(mean: float) -> float:
    """What hides if it is one event of the smaller tau that follows: x = 1 / (1 + x / mean)."""
    return float((np.sqrt(mean**2 + 4 * mean) - mean) / 2)


def _may_hide(more: float, rates: FloatArray, whole: FloatArray, mean: float) -> bool:
    """Whether it is likely enough that none of the whole observations was less.

    The variance is what was measured, so tau is smaller by as much as the mean is larger.
    """
    scale = 1 + more / mean
    chance = special.gammainc(more * scale, (rates + more) * scale)  # P(N >= more), between whole counts as well
    return bool(whole @ np.log(np.maximum(chance, 1e-300)) > np.log((1 - CONFIDENCE) / 2))
