"""E of the k-th smallest of many independent Poisson counts, for all k, from groups of like ones.

The number of workers that are done by a lattice point is a sum of one binomial a group. Its distribution is taken from
its first three moments (the refined normal approximation of Poisson-binomials: A. Yu. Volkova, Theory Probab. Appl. 40
(1995)); for the first and the last few workers, where a sum of few events is not normal, from the binomials' own first
terms. Between the ks that are evaluated E is interpolated. Pure functions of arrays.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from controller.measure import FloatArray

Counts = NDArray[np.int64]

ENDS = 24
"""First and last ks that are exact for the groups."""

BETWEEN = 400
"""Most ks between them that are evaluated."""


def grouped_counts(done: FloatArray, sizes: Counts, weights: FloatArray) -> FloatArray:
    """E of the k-th smallest, k = 1..n (n,), n = sum of `sizes` (groups,).

    `done` (groups, points) is P(a worker of the group is done by the point), `weights` (points,) make of values at the
    points their sum over the lattice.
    """
    workers = int(sizes.sum())
    head, end = min(ENDS, (workers + 1) // 2), min(ENDS, workers // 2)
    between = _spaced(head + 1, workers - end)
    first = np.cumsum(_first_terms(done, sizes, head) @ weights)
    inside = _fewer(between, done, sizes) @ weights
    last = weights.sum() - np.cumsum(_first_terms(1 - done, sizes, end) @ weights)
    ks = np.concatenate((np.arange(1.0, head + 1), between, np.arange(workers - end + 1.0, workers + 1)))
    expected = np.concatenate((first, inside, last[::-1]))
    return np.asarray(np.maximum.accumulate(np.interp(np.arange(1, workers + 1), ks, expected)))


def _spaced(first: int, last: int) -> FloatArray:
    """Whole numbers from `first` to `last` (none where it is below), closer together at both ends."""
    if last < first:
        return np.empty(0)
    return np.unique((first + (last - first) * 0.5 * (1 - np.cos(np.linspace(0, np.pi, BETWEEN)))).round())


def _fewer(ks: FloatArray, done: FloatArray, sizes: Counts) -> FloatArray:
    """P(fewer than k are done) (ks, points), from the moments of their number."""
    spread = done * (1 - done)
    mean, variance, third = sizes @ done, sizes @ spread, sizes @ (spread * (1 - 2 * done))
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    x = (ks[:, None] - 0.5 - mean) / deviation
    skew = third / deviation**3 / 6
    density = np.exp(-0.5 * np.minimum(x * x, 1400)) / np.sqrt(2 * np.pi)
    return np.asarray(np.clip(special.ndtr(x) + skew * (1 - x * x) * density, 0.0, 1.0))


def _first_terms(done: FloatArray, sizes: Counts, count: int) -> FloatArray:
    """P(exactly j are done), j = 0..count - 1 (count, points): the groups' binomials, convolved in pairs."""
    ks = np.arange(count, dtype=np.float64)
    rest = np.maximum(sizes[:, None] - ks, 0.0)
    choices = special.gammaln(sizes[:, None] + 1) - special.gammaln(ks + 1) - special.gammaln(rest + 1)
    with np.errstate(divide="ignore"):
        odds = np.maximum(np.log(done), -1e4)[:, None], np.maximum(np.log1p(-done), -1e4)[:, None]
    terms = np.exp(choices[..., None] + ks[:, None] * odds[0] + rest[..., None] * odds[1])
    terms *= (ks <= sizes[:, None])[..., None]
    while len(terms) > 1:
        single = terms[len(terms) & ~1 :]
        left, right = terms[: len(terms) & ~1 : 2], terms[1::2]
        joined = left * right[:, :1]
        for j in range(1, count):
            joined[:, j:] += left[:, : count - j] * right[:, j : j + 1]
        terms = np.concatenate((joined, single))
    return np.asarray(terms[0])
