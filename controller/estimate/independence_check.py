"""Whether workers block independently of each other: permutation tests on rows that are aligned by iteration.

If they do, each worker's blocks may change places without those of the others, and windows so made are as likely as the
one that was measured. Two numbers are held against theirs: the variance of the rows' means, which a shock common to all
makes large, and the sum of the squared correlations of all pairs, which groups with shocks of their own, or workers
that take turns, make large. Pure functions; the permutations are fixed.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from kofn.controller.estimate.aligned import align, completed, filled
from kofn.controller.estimate.measurements import BoolArray, FloatArray

SEED = 1

PERMUTATIONS = 199
"""Permutations for each of the two tests: in either, independent workers' window is the farthest of 200 once in 100
times.
"""

WORKERS = 64
"""Maximum number of workers that are tested. With very many, a dependence too small to matter would be found, and
errors in the treatment of lower bounds.
"""

LEAST = 8
"""Iterations of which at least two workers' times are known, below which nothing is tested."""

UNLIKE = 0.1
"""Share of the workers by which the number that is cut off may differ from the usual one: an iteration of which more is
known than of the others, because k has changed, looks unlike them."""

NEAR = 0.05
"""Share of s below which times are not told apart: a smaller tau is noise, or many events."""

STEADY = 0.05
"""Variance of a score, as a share of a Poisson count's, that is noise: a worker that is hardly blocked correlates with
none.
"""


def independence_chance(
    counts: FloatArray, cut: BoolArray, iterations: NDArray[np.int64], rates: FloatArray, service: float
) -> float:
    """The share of windows of independent workers, at least 2 / (PERMUTATIONS + 1), that look as dependent as this one.

    `counts` (n, window) are in units of tau, begun in these `iterations` (n, window); lower bounds are drawn from
    the worker's own distribution beyond them, which makes independent windows of independent workers. `rates` (n,) are
    Poisson's, `service` is s / tau. 1 where too little is known.
    """
    some = np.linspace(0, len(rates) - 1, min(len(rates), WORKERS)).round().astype(np.int64)
    counts, cut, iterations, rates = counts[some], cut[some], iterations[some], rates[some]
    number = np.nansum(align(cut.astype(np.float64), iterations), axis=0)  # cut off, in each iteration
    alike = np.abs(number - np.median(number)) <= 1 + UNLIKE * len(rates)
    values = completed(counts, cut, rates)
    rows = align(values, iterations)[:, alike]
    known = ~np.isnan(rows)
    if np.sum(known.sum(axis=0) > 1) < LEAST:
        return 1.0
    least = (NEAR * service) ** 2  # variance
    scores = _scores(filled(rows, values, rates) / np.sqrt(rates + least)[:, None], known)
    n, window = scores.shape
    shuffled = np.take_along_axis(scores[None], _permutations(n, window), axis=2)
    windows = np.concatenate((scores[None], shuffled))
    means = np.sum(windows.sum(axis=1) ** 2, axis=1)
    scaled = windows / np.sqrt(np.mean(scores**2, axis=1) + STEADY)[:, None]
    products = scaled @ scaled.swapaxes(1, 2) if n <= window else scaled.swapaxes(1, 2) @ scaled
    pairs = np.sum(products**2, axis=(1, 2))  # its diagonal is the same in all of them
    least = min(np.mean(means >= means[0] * (1 - 1e-9)), np.mean(pairs >= pairs[0] * (1 - 1e-9)))
    return float(min(2 * least, 1.0))


def _scores(counts: FloatArray, known: BoolArray) -> FloatArray:
    """Less each worker's mean; 0 where nothing is known."""
    mean = np.sum(counts, axis=1, where=known) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, counts - mean[:, None], 0.0)


@functools.lru_cache(maxsize=4)
def _permutations(n: int, window: int) -> NDArray[np.int64]:
    """Return permutations of each worker's blocks (PERMUTATIONS, n, window)."""
    return np.argsort(np.random.default_rng(SEED).random((PERMUTATIONS, n, window)), axis=2)
