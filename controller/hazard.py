"""The Poisson distribution's hazard P(N = m) / P(N >= m): what every sum over lower bounds is made of.

Few are taken from the incomplete gamma function, many from a table. Pure functions of arrays.
"""

import functools

import numpy as np
from scipy import special

from controller.measure import FloatArray

MANY = 2048
"""From so many on they are looked up: within 0.0003 of themselves."""

COUNTS, ROOTS, STEPS = 256, 16, 32
"""The table has whole counts below the first, square roots of rates up to the second, in so many steps a unit."""

TINY = 1e-280
"""A tail below this is not divided by."""


def hazard(counts: FloatArray, rates: FloatArray) -> FloatArray:
    """For whole counts >= 0 and rates > 0 of the same shape."""
    if counts.size < MANY:
        return _exact(counts, rates)
    place = np.sqrt(rates) * STEPS
    inside = (counts < COUNTS) & (place < ROOTS * STEPS)
    left = np.where(inside, place, 0.0).astype(np.int64)
    share = np.where(inside, place, 0.0) - left
    flat = np.where(inside, counts, 0.0).astype(np.int64) * (ROOTS * STEPS + 1) + left
    table = _table()
    found = table[flat] * (1 - share) + table[flat + 1] * share
    if not inside.all():
        found[~inside] = _exact(counts[~inside], rates[~inside])
    return np.asarray(found)


def _exact(counts: FloatArray, rates: FloatArray) -> FloatArray:
    """By the incomplete gamma function; far out in the tail by its first terms."""
    mass = np.exp(special.xlogy(counts, rates) - rates - special.gammaln(counts + 1))
    tail = np.where(counts > 0, special.gammainc(np.maximum(counts, 1.0), rates), 1.0)
    far = rates / (counts + 1)
    return np.asarray(np.where(tail > TINY, mass / np.maximum(tail, TINY), 1 / (1 + far)))


@functools.lru_cache(maxsize=1)
def _table() -> FloatArray:
    """Of every count and root, a row a count, flat."""
    rates = (np.arange(ROOTS * STEPS + 1) / STEPS) ** 2
    return _exact(np.arange(COUNTS, dtype=np.float64)[:, None], np.maximum(rates, 1e-12)[None, :]).ravel()
