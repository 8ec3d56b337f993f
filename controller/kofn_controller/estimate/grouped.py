"""The expected k-th smallest of many independent Poisson counts, for all k, from groups of similar rates.

The number of workers that are done by a lattice point is a sum of binomials, one for each group. Its distribution comes
from its first three moments (the refined normal approximation of Poisson-binomials: A. Yu. Volkova, Theory Probab.
Appl. 40 (1995)). A sum of few events is not normal, so the first and the last few workers use the binomials' exact
terms. Pure functions of arrays.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.poisson import poisson_done, poisson_mass

GROUPS = 24

Counts = NDArray[np.int64]

ENDS = 16
"""The number of first ks, and of last ks, that use the binomials' exact terms."""

MORE = 4
"""If the expected number of done workers is this many times k, P(fewer than k are done) is taken to be 0."""

FAR = 6.0
"""Standard deviations from the mean beyond which a number of done workers is taken to be impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountGroups:
    """Groups of workers with nearly the same rate; no group is empty."""

    means: FloatArray  # (groups,) mean rates, ascending
    variances: FloatArray  # (groups,) variances of the rates
    sizes: Counts  # (groups,) numbers of workers
    group: Counts  # (workers,) the group of each worker


def by_value(rates: FloatArray, most: int = GROUPS) -> CountGroups:
    """Divide the range of the square roots of the rates (workers,) evenly into at most `most` groups.

    The root of a Poisson count has the same variance for any mean, so all groups lose the same precision. A straggler
    gets a separate group.
    """
    roots = np.sqrt(rates)
    low, high = roots.min(initial=np.inf), roots.max(initial=0.0)
    place = np.minimum((roots - low) * (most / max(high - low, 1e-9)), most - 1).astype(np.int64)
    sizes = np.bincount(place, minlength=most)
    group = (np.cumsum(sizes > 0) - 1)[place]
    sizes = sizes[sizes > 0]
    means = np.bincount(group, rates) / sizes
    return CountGroups(
        means=means, variances=np.bincount(group, (rates - means[group]) ** 2) / sizes, sizes=sizes, group=group
    )


def grouped_done(groups: CountGroups, points: FloatArray) -> FloatArray:
    """Return the mean over each group's workers of P(N <= m) (groups, points) at ascending whole `points` m.

    The result is exact to second order in the differences of the rates within a group.
    """
    mu = groups.means[:, None]
    bend = _mass(points, mu) - _mass(points - 1, mu)  # second derivative of P(N <= m) by the rate
    return np.clip(poisson_done(points, groups.means) + 0.5 * groups.variances[:, None] * bend, 0.0, 1.0)


def _mass(counts: FloatArray, mu: FloatArray) -> FloatArray:
    """Return P(N = count); 0 for counts below 0."""
    inside = np.maximum(counts, 0.0)
    return np.where(counts < 0, 0.0, poisson_mass(inside, mu))


def grouped_counts(done: FloatArray, sizes: Counts, weights: FloatArray) -> FloatArray:
    """Return the expected k-th smallest count for k = 1..n (n,), n = sum of `sizes` (groups,).

    `done` (groups, points) is P(a worker of the group is done by the point). `weights` (points,): a
    function's sum over the lattice is the weighted sum of its values at the points.
    """
    workers = int(sizes.sum())
    head, end = min(ENDS, (workers + 1) // 2), min(ENDS, workers // 2)
    expected = _inside(done, sizes, weights)
    expected[:head] = _first(done, sizes, weights, head)
    expected[workers - end :] = weights.sum() - _first(1 - done, sizes, weights, end)[::-1]
    return np.asarray(np.maximum.accumulate(expected))


def _inside(done: FloatArray, sizes: Counts, weights: FloatArray) -> FloatArray:
    """Return the expectations for all k (n,) from the moments of the number of done workers. Far from its mean
    P(fewer than k) is 0 or 1.
    """
    workers = int(sizes.sum())
    spread = done * (1 - done)
    mean, variance, third = sizes @ done, sizes @ spread, sizes @ (spread * (1 - 2 * done))
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    reach = int(FAR * deviation.max()) + 2
    first = np.floor(mean).astype(np.int64) - reach
    ks = first[:, None] + np.arange(2 * reach + 1)
    x = (ks - 0.5 - mean[:, None]) / deviation[:, None]
    skew = (third / deviation**3 / 6)[:, None]
    density = np.exp(-0.5 * np.minimum(x * x, 1400)) / np.sqrt(2 * np.pi)
    fewer = np.clip(special.ndtr(x) + skew * (1 - x * x) * density, 0.0, 1.0) * weights[:, None]
    at = np.clip(ks, 0, workers + 1)
    near = np.bincount(at.ravel(), fewer.ravel(), minlength=workers + 2)
    beyond = np.bincount(np.clip(first + 2 * reach + 1, 0, workers + 1), weights, minlength=workers + 2)
    return np.asarray((near + np.cumsum(beyond))[1 : workers + 1])


def _first(done: FloatArray, sizes: Counts, weights: FloatArray, count: int) -> FloatArray:
    """Return the expectations for the first ks (count,), from the points at which fewer than MORE * count workers are
    expected to be done."""
    near = sizes @ done < MORE * count
    return np.asarray(np.cumsum(_first_terms(done[:, near], sizes, count), axis=0) @ weights[near])


def _first_terms(done: FloatArray, sizes: Counts, count: int) -> FloatArray:
    """Return P(exactly j workers are done), j = 0..count - 1 (count, points): the groups' binomials, convolved."""
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
