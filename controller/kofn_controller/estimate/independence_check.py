"""Tests whether workers block independently of each other, by permutations of times that are aligned by iteration.

If the workers are independent, permuting each worker's times among the iterations gives tables of times (windows) that
are as likely as the measured window. Two statistics of the measured window are compared with the same statistics of
permuted windows. The first is the variance of the racks' means in an iteration: a shock common to a rack, or to all
workers, makes this variance large. The second is the sum of the squared correlations of all pairs of workers: shocks of
other groups, or workers that take turns, make this sum large. Pure functions; the permutations are fixed.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from kofn_controller.estimate.aligned import align, completed, filled
from kofn_controller.estimate.measurements import BoolArray, FloatArray

SEED = 1

PERMUTATIONS = 199
"""Permutations for each of the two tests. If the workers are independent, the measured window is the most extreme of
200 windows in one of the two tests once in 100 times.
"""

WORKERS = 64
"""Maximum number of workers that are tested. A test of very many workers would find dependences too small to matter,
and errors in the treatment of lower bounds.
"""

LEAST = 8
"""Minimum number of iterations with the times of at least two workers."""

UNLIKE = 0.1
"""An iteration's number of lower bounds (times of first blocks that were not finished yet) may differ from the median
number by 1 plus this share of the tested workers. Iterations whose number differs more are left out, because they had
another k."""

NEAR = 0.05
"""Differences of times below this share of s, the time without blocking, are noise."""

STEADY = 0.05
"""Noise variance that is added to each worker's variance. The unit is the variance of a Poisson count with the worker's
rate, plus the variance of the noise that NEAR defines. With the added noise, a worker that is hardly blocked correlates
with no other worker.
"""


def independence_chance(
    counts: FloatArray, cut: BoolArray, iterations: NDArray[np.int64], rates: FloatArray, service: float, racks: int = 1
) -> float:
    """Return the share of independent workers' windows that look at least as dependent as the measured window. The
    share is at least 2 / (PERMUTATIONS + 1); it is 1 if too little is known.

    `counts` (n, window), in units of tau, belong to these `iterations` (n, window). Lower bounds, marked by `cut`, are
    replaced by draws from the worker's own distribution beyond them. `rates` (n,) are the fitted Poisson rates,
    `service` is s / tau. The workers are in `racks` racks of equal size, rack by rack.
    """
    size = len(rates) // racks
    some = np.linspace(0, size - 1, min(size, WORKERS // racks)).round().astype(np.int64)
    some = (size * np.arange(racks)[:, None] + some).ravel()
    counts, cut, iterations, rates = counts[some], cut[some], iterations[some], rates[some]
    number = np.nansum(align(cut.astype(np.float64), iterations), axis=0)  # lower bounds in each iteration
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
    means = np.sum(windows.reshape(len(windows), racks, -1, window).sum(axis=2) ** 2, axis=(1, 2))
    scaled = windows / np.sqrt(np.mean(scores**2, axis=1) + STEADY)[:, None]
    products = scaled @ scaled.swapaxes(1, 2) if n <= window else scaled.swapaxes(1, 2) @ scaled
    pairs = np.sum(products**2, axis=(1, 2))  # the diagonal is the same in all windows
    least = min(np.mean(means >= means[0] * (1 - 1e-9)), np.mean(pairs >= pairs[0] * (1 - 1e-9)))
    return float(min(2 * least, 1.0))


def _scores(counts: FloatArray, known: BoolArray) -> FloatArray:
    """Return the counts minus each worker's mean; 0 where unknown."""
    mean = np.sum(counts, axis=1, where=known) / np.maximum(known.sum(axis=1), 1)
    return np.where(known, counts - mean[:, None], 0.0)


@functools.lru_cache(maxsize=4)
def _permutations(n: int, window: int) -> NDArray[np.int64]:
    """Return PERMUTATIONS random permutations of each worker's iterations, (PERMUTATIONS, n, window)."""
    return np.argsort(np.random.default_rng(SEED).random((PERMUTATIONS, n, window)), axis=2)
