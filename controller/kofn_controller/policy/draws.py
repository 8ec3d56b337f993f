"""Draws first-block times of n workers from an estimate by its law, and computes E_k[T] of that law.

Times are fixed quantiles in a fixed random order (SEED), the same for every k, rule and estimate, so that a simulation
changes only with the estimate. If there are many workers, some represent all. Pure functions.
"""

import functools
from dataclasses import dataclass

import numpy as np
from scipy import special

from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.grouped import by_value, grouped_counts
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.estimate.poisson import TAIL, farthest
from kofn_controller.policy.expected_time import GROUP_ABOVE, each_number
from kofn_controller.policy.process import BURN_IN, IntArray

SEED = 1

STEPS = BURN_IN + 40
"""Number of simulated iterations."""

CHAINS, FEW, LEAST = 32, 16, 4
"""Number of simulations side by side: CHAINS with up to FEW workers, half as many when the workers double, at least
LEAST."""

TIE = 1e-3
"""Range of random changes, in blocking events, that break ties between equal times."""

TOGETHER = 4
"""Mean number of successive iterations that are drawn together under the law "bootstrap": a shock may last for several
iterations."""

MANY = GROUP_ABOVE
"""Maximum number of simulated workers."""

POINTS = 256
"""Maximum number of points at which workers' own distributions are evaluated, and of points beyond lower bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Times of m <= MANY workers, which represent all n."""

    times: FloatArray  # (steps, chains, m)
    phase: FloatArray  # (chains, m), 0 to 1: the remaining share of each worker's first gradient
    sizes: FloatArray  # (m,) the number of workers that each represents
    stands: IntArray  # (n,) the representative of each worker, 0..m - 1


def draw(estimate: Estimate, live: BoolArray, unit_s: float) -> Draws:
    """Draw times of the n live workers, in units of `unit_s`."""
    ranks = np.flatnonzero(live)
    chosen, stands, mean_s = _representatives(estimate.lambda_s[ranks])
    counts = _counts(estimate, ranks[chosen], mean_s / estimate.event_s)
    _, ties, phase = _order(len(chosen))
    return Draws(
        times=(estimate.service_s + estimate.event_s * (counts + ties)) / unit_s,
        phase=phase,
        sizes=np.bincount(stands).astype(np.float64),
        stands=stands,
    )


def law_times(estimate: Estimate, live: BoolArray, expected_s: FloatArray) -> FloatArray:
    """Return E_k[T] (n,) by the estimate's law; `expected_s` is E_k[T] of the Poisson model."""
    if estimate.rows is not None:
        counts = np.sort(estimate.rows[live].T, axis=1).mean(axis=0)
    elif estimate.own is not None:
        counts = _own_counts(estimate.own.at(live[estimate.own.rank]))
    else:
        return expected_s
    return np.asarray(estimate.service_s + estimate.event_s * counts)


def _own_counts(curves: Curves) -> FloatArray:
    """Return the expected k-th smallest of independent counts (n,): the integral of P(fewer than k are at most x)."""
    points, weights = _points(curves)
    if len(curves) <= GROUP_ABOVE:
        return np.asarray(np.cumsum(each_number(curves.reached(points))[:-1] @ weights))
    groups = by_value(curves.rate)
    return grouped_counts(curves.reached(points, groups), groups.sizes, weights)


def _points(curves: Curves) -> tuple[FloatArray, FloatArray]:
    """Return points x and weights w such that w @ f(x) is the integral of a step function f that falls at the counts.

    If there are many counts, some of them are points, evenly spaced by number and by value; f is taken to fall evenly
    at the counts between them. Beyond a lower bound it may fall at every whole count.
    """
    some = curves.at(np.arange(0, len(curves), -(-len(curves) // POINTS)))
    steps = np.unique(np.append(some.counts[some.masses > 0], curves.longest))
    points = steps
    if len(steps) > POINTS:
        spread = np.linspace(steps[0], steps[-1], POINTS // 2)
        points = np.append(steps[np.linspace(0, len(steps) - 1, POINTS // 2).round().astype(np.int64)], spread)
    beyond = curves.at(curves.left > 0)
    if len(beyond):
        first, last = max(float(beyond.bound.min()), 0.0), np.maximum(beyond.bound, beyond.rate)
        end = np.max(last + TAIL * np.sqrt(beyond.rate)) + 16
        points = np.append(points, np.linspace(np.floor(first), end, POINTS).round())
    points = np.unique(np.append(0.0, points))
    gaps = np.diff(points)
    between = np.diff(np.searchsorted(steps, points, side="right")) + (gaps if len(beyond) else 0.0)
    later = 0.5 * gaps * (1 - 1 / np.maximum(between, 1.0))
    weights = np.append(gaps - later, 0.0)
    weights[1:] += later
    return points, weights


def _representatives(lambda_s: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the representatives (m,), the representative of each worker (n,), and the mean lambda of each
    representative's workers (m,).

    A representative stands for at most a share of 2 / MANY of the workers, and of the range of the square roots of
    lambda. So a straggler represents only itself.
    """
    n = len(lambda_s)
    if n <= MANY:
        return np.arange(n), np.arange(n), lambda_s
    roots = np.sqrt(lambda_s)
    order = np.argsort(roots)
    by_number = np.empty(n)
    by_number[order] = (np.arange(n) + 0.5) / n
    value = (roots - roots[order[0]]) / max(float(roots[order[-1]] - roots[order[0]]), 1e-12)
    place = np.minimum((by_number + value) / 2 * MANY, MANY - 1).astype(np.int64)
    _, stands, sizes = np.unique(place, return_inverse=True, return_counts=True)
    middle = order[np.cumsum(sizes) - sizes + sizes // 2]  # `place` ascends with lambda
    return middle, stands, np.bincount(stands, lambda_s) / sizes


def _counts(estimate: Estimate, ranks: IntArray, rates: FloatArray) -> FloatArray:
    """Return drawn blocking events (steps, chains, m) of these workers."""
    order, _, _ = _order(len(ranks))
    if estimate.rows is not None:
        rows = estimate.rows[ranks]
        return rows.T[_walk(order.shape[1], rows.shape[1])]
    levels = (np.arange(order[..., 0].size) + 0.5) / order[..., 0].size
    curves = estimate.curves if estimate.own is None else estimate.own
    own = dict(zip(curves.rank.tolist(), range(len(curves)), strict=True))
    counts = np.empty(order.shape)
    for i, (rank, rate) in enumerate(zip(ranks.tolist(), rates.tolist(), strict=True)):
        quantiles = curves.quantiles(own[rank], levels) if rank in own else poisson_quantiles(rate, levels)
        counts[:, :, i] = quantiles[order[:, :, i]]
    return counts


def poisson_quantiles(rate: float, levels: FloatArray) -> FloatArray:
    """Return the quantiles of a Poisson distribution at these levels."""
    return np.asarray(np.searchsorted(special.pdtr(np.arange(farthest(rate)), rate), levels), dtype=np.float64)


@functools.lru_cache(maxsize=4)
def _order(m: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return for each of m workers the random order of its quantiles and the changes that break ties, both
    (steps, chains, m), and the phases (chains, m)."""
    random = np.random.default_rng(SEED)
    shape = (STEPS, max(CHAINS * FEW // max(m, FEW), LEAST), m)
    quantiles = np.arange(shape[0] * shape[1])[:, None].repeat(m, axis=1)
    order = random.permuted(quantiles, axis=0).reshape(shape)
    return order, random.uniform(-TIE / 2, TIE / 2, shape), random.random(shape[1:])


@functools.lru_cache(maxsize=4)
def _walk(chains: int, window: int) -> IntArray:
    """Draw iterations of a window (steps, chains) by the stationary bootstrap, in runs of successive iterations
    (D. N. Politis, J. P. Romano, JASA 89 (1994))."""
    random = np.random.default_rng(SEED)
    elsewhere = random.integers(window, size=(STEPS, chains))
    on = random.random((STEPS, chains)) >= 1 / TOGETHER
    places = elsewhere.copy()
    for step in range(1, STEPS):
        places[step] = np.where(on[step], (places[step - 1] + 1) % window, elsewhere[step])
    return places
