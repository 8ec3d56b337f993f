"""First-block times of n workers drawn from an estimate, as its law says; and E_k[T] of that law.

Times are fixed quantiles in a fixed random order (SEED), the same for every k, rule and estimate: what is simulated
with them moves with the estimate alone. Of many workers some stand for all. Pure functions.
"""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from controller.choose import GROUP_ABOVE, TAIL, each_number
from controller.curves import Curves
from controller.grouped import by_value, grouped_counts
from controller.measure import BoolArray, FloatArray
from controller.model import Estimate

SEED = 1

STEPS = 48
"""Iterations that are simulated."""

CHAINS, FEW = 32, 8
"""Simulations of the same workers side by side; half as many for each doubling of their number above FEW, at least 8."""

TIE = 1e-3
"""Blocking events by which equal times are told apart, at random: in the process no two are equal."""

TOGETHER = 4
"""Iterations in a row, on average, that are drawn together where whole iterations are: a shock may last for some."""

MANY = GROUP_ABOVE
"""Most workers that are simulated."""

POINTS = 256
"""Most times at which workers' own distributions are evaluated."""

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Times of m <= MANY workers, which stand for all n."""

    times: FloatArray  # (steps, chains, m)
    phase: FloatArray  # (chains, m), 0 to 1: share of its first gradient that each still needs
    sizes: FloatArray  # (m,) workers that each stands for
    stands: IntArray  # (n,) which of the m stands for a worker


def draw(estimate: Estimate, live: BoolArray, unit_s: float) -> Draws:
    """Of the n live workers, in units of `unit_s`."""
    ranks = np.flatnonzero(live)
    chosen, stands, mean_s = _representatives(estimate.lambda_s[ranks])
    counts = _counts(estimate, ranks[chosen], mean_s / estimate.event_s)
    order, ties, phase = _order(len(chosen))
    return Draws(
        times=(estimate.service_s + estimate.event_s * (counts + ties)) / unit_s,
        phase=phase,
        sizes=np.bincount(stands).astype(np.float64),
        stands=stands,
    )


def law_times(estimate: Estimate, live: BoolArray, expected_s: FloatArray) -> FloatArray:
    """E_k[T] (n,) by the law in force; `expected_s` is Poisson's."""
    if estimate.rows is not None:
        counts = np.sort(estimate.rows[live], axis=0).mean(axis=1)
    elif estimate.own is not None:
        counts = _own_counts(estimate.own.at(live[estimate.own.rank]))
    else:
        return expected_s
    return np.asarray(estimate.service_s + estimate.event_s * counts)


def _own_counts(curves: Curves) -> FloatArray:
    """E of the k-th smallest (n,) of independent counts: the integral of P(fewer than k are there by x)."""
    points = np.unique(curves.counts[curves.masses > 0])
    points = np.unique(np.concatenate(([0.0], points, _tails(curves))))
    if len(points) > POINTS:
        points = points[np.unique(np.linspace(0, len(points) - 1, POINTS).round().astype(np.int64))]
    gaps = np.append(np.diff(points), 0.0)
    done = curves.reached(points)
    if len(curves) <= GROUP_ABOVE:
        return np.asarray(np.cumsum(each_number(done)[:-1] @ gaps))
    groups = by_value(curves.rate)
    together = np.zeros((len(groups.sizes), len(points)))
    np.add.at(together, groups.group, done)
    return grouped_counts(together / groups.sizes[:, None], groups.sizes, gaps)


def _tails(curves: Curves) -> FloatArray:
    """Whole counts that are only to be expected beyond a lower bound."""
    beyond = curves.at(curves.left > 0)
    if not len(beyond):
        return np.empty(0)
    last = float(np.max(np.maximum(beyond.bound, beyond.rate) + TAIL * np.sqrt(beyond.rate))) + 16
    return np.unique(np.linspace(np.floor(max(beyond.bound.min(), 0.0)), last, POINTS).round())


def _representatives(lambda_s: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Who stands for others (m,), by whom each is stood for (n,), and the mean lambda of these (m,).

    Each stands for at most 2 / MANY of the workers, and of the range of the roots of lambda: a straggler is alone.
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
    most = int(rate + TAIL * np.sqrt(rate) + 16)
    return np.asarray(np.searchsorted(special.pdtr(np.arange(most), rate), levels), dtype=np.float64)


@functools.lru_cache(maxsize=4)
def _order(m: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """For each of m workers an order of its quantiles, what tells equal counts apart, both (steps, chains, m), and the
    phases (chains, m)."""
    random = np.random.default_rng(SEED)
    shape = (STEPS, max(CHAINS * FEW // max(m, FEW), 8), m)
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
