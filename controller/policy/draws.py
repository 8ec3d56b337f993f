"""First-block times of n workers drawn from an estimate by its law, and E_k[T] of that law.

Times are fixed quantiles in a fixed random order (SEED), the same for every k, rule and estimate: a simulation with
them changes with the estimate alone. With many workers, some represent all. Pure functions.
"""

import functools
from dataclasses import dataclass

import numpy as np
from scipy import special

from kofn.controller.estimate.curves import Curves
from kofn.controller.estimate.grouped import by_value, grouped_counts
from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.controller.estimate.model import Estimate
from kofn.controller.estimate.poisson import TAIL, farthest
from kofn.controller.policy.expected_time import GROUP_ABOVE, each_number
from kofn.controller.policy.process import BURN_IN, IntArray

SEED = 1

STEPS = BURN_IN + 40
"""Iterations that are simulated."""

CHAINS, FEW, LEAST = 32, 16, 4
"""Simulations of the same workers side by side; half as many for each doubling of these above FEW, not below LEAST."""

TIE = 1e-3
"""Random blocking events that break ties between equal times: in the process no two are equal."""

TOGETHER = 4
"""Iterations in a row, on average, that are drawn together where whole iterations are: a shock may last for some."""

MANY = GROUP_ABOVE
"""Most workers that are simulated."""

POINTS = 256
"""Most counts at which workers' own distributions are evaluated, and most beyond their lower bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Times of m <= MANY workers, which stand for all n."""

    times: FloatArray  # (steps, chains, m)
    phase: FloatArray  # (chains, m), 0 to 1: share of its first gradient that each still needs
    sizes: FloatArray  # (m,) workers that each stands for
    stands: IntArray  # (n,) which of the m stands for a worker


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
    """E_k[T] (n,) by the law in force; `expected_s` is Poisson's."""
    if estimate.rows is not None:
        counts = np.sort(estimate.rows[live].T, axis=1).mean(axis=0)
    elif estimate.own is not None:
        counts = _own_counts(estimate.own.at(live[estimate.own.rank]))
    else:
        return expected_s
    return np.asarray(estimate.service_s + estimate.event_s * counts)


def _own_counts(curves: Curves) -> FloatArray:
    """E of the k-th smallest (n,) of independent counts: the integral of P(fewer than k are there by x)."""
    points, weights = _points(curves)
    if len(curves) <= GROUP_ABOVE:
        return np.asarray(np.cumsum(each_number(curves.reached(points))[:-1] @ weights))
    groups = by_value(curves.rate)
    return grouped_counts(curves.reached(points, groups), groups.sizes, weights)


def _points(curves: Curves) -> tuple[FloatArray, FloatArray]:
    """Points x and weights w, so that w @ f(x) is the integral of an f that falls at the counts there are.

    Of many counts some are points, evenly by number and by value; between them f falls in as many steps as there are.
    Beyond a lower bound it may fall at every whole count.
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
    """Return the representatives (m,), the representative of each worker (n,), and the mean lambda of each one's
    workers (m,).

    Each represents at most 2 / MANY of the workers, and of the range of the roots of lambda: a straggler represents
    itself.
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
    """Blocking events (steps, chains, m) of these workers."""
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
    """Counts below which a share of `levels` lies."""
    return np.asarray(np.searchsorted(special.pdtr(np.arange(farthest(rate)), rate), levels), dtype=np.float64)


@functools.lru_cache(maxsize=4)
def _order(m: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """For each of m workers an order of its quantiles, what tells equal counts apart, both (steps, chains, m), and the
    phases (chains, m)."""
    random = np.random.default_rng(SEED)
    shape = (STEPS, max(CHAINS * FEW // max(m, FEW), LEAST), m)
    quantiles = np.arange(shape[0] * shape[1])[:, None].repeat(m, axis=1)
    order = random.permuted(quantiles, axis=0).reshape(shape)
    return order, random.uniform(-TIE / 2, TIE / 2, shape), random.random(shape[1:])


@functools.lru_cache(maxsize=4)
def _walk(chains: int, window: int) -> IntArray:
    """Iterations of a window (steps, chains), some in a row and then others (the stationary bootstrap: D. N. Politis,
    J. P. Romano, JASA 89 (1994))."""
    random = np.random.default_rng(SEED)
    elsewhere = random.integers(window, size=(STEPS, chains))
    on = random.random((STEPS, chains)) >= 1 / TOGETHER
    places = elsewhere.copy()
    for step in range(1, STEPS):
        places[step] = np.where(on[step], (places[step - 1] + 1) % window, elsewhere[step])
    return places
