"""Whether workers block independently of each other: permutation tests on rows that are aligned by iteration.

If they do, each worker's blocks may change places without those of the others, and windows so made are as likely as the
one that was measured. Two numbers are held against theirs: the variance of the rows' means, which a shock common to all
makes large, and the sum of the squared correlations of all pairs, which groups with shocks of their own, or workers
that take turns, make large. Pure functions; the permutations are fixed.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from controller.measure import BoolArray, FloatArray
from controller.poisson import imputed

SEED = 1

PERMUTATIONS = 199
"""Of each of the two tests: the measured window is the farthest of 200 by chance once, in either once in 100."""

WORKERS = 64
"""Most workers that are looked at. Of very many a dependence too small to matter would be found, and what is amiss with
lower bounds."""

LEAST = 8
"""Iterations of which at least two workers' times are known, below which nothing is tested."""

STEADY = 0.05
"""Variance of a score, as a share of a Poisson count's, that is noise: who is hardly blocked correlates with nobody."""


def independence_chance(counts: FloatArray, cut: BoolArray, rates: FloatArray) -> float:
    """The share of windows of independent workers, at least 2 / (PERMUTATIONS + 1), that look as dependent as this one.

    `counts` (n, window) in units of tau, aligned by iteration, NaN where there is none; `cut` marks lower bounds, which
    count as the mean given them under Poisson `rates` (n,). 1 where too little is known.
    """
    some = np.linspace(0, len(counts) - 1, min(len(counts), WORKERS)).round().astype(np.int64)
    counts, cut, rates = counts[some], cut[some], rates[some]
    known = ~np.isnan(counts)
    if np.sum(known.sum(axis=0) > 1) < LEAST:
        return 1.0
    scores = _scores(*imputed(counts, cut, rates), known)
    n, window = scores.shape
    shuffled = np.take_along_axis(scores[None], _permutations(n, window), axis=2)
    windows = np.concatenate((scores[None], shuffled))
    means = np.sum(windows.sum(axis=1) ** 2, axis=1)
    scaled = windows / np.sqrt(np.mean(scores**2, axis=1) + STEADY / 4)[:, None]
    products = scaled @ scaled.swapaxes(1, 2) if n <= window else scaled.swapaxes(1, 2) @ scaled
    pairs = np.sum(products**2, axis=(1, 2))  # its diagonal is the same in all of them
    least = min(np.mean(means >= means[0] * (1 - 1e-9)), np.mean(pairs >= pairs[0] * (1 - 1e-9)))
    return float(min(2 * least, 1.0))


def _scores(counts: FloatArray, variance: FloatArray, known: BoolArray) -> FloatArray:
    """sqrt(N + 3/8), whose variance is 1 / 4 for any Poisson mean (F. J. Anscombe, Biometrika 35 (1948)), less each
    worker's mean; 0 where nothing is known. Of a lower bound: the mean of the root, to second order."""
    inside = np.where(known, counts, 0.0) + 0.375
    roots = np.sqrt(inside) - np.where(known, variance, 0.0) / (8 * inside**1.5)
    mean = np.sum(roots * known, axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.asarray((roots - mean[:, None]) * known)


@functools.lru_cache(maxsize=4)
def _permutations(n: int, window: int) -> NDArray[np.int64]:
    """Of each worker's blocks (PERMUTATIONS, n, window)."""
    return np.argsort(np.random.default_rng(SEED).random((PERMUTATIONS, n, window)), axis=2)
