"""E_k[T]: the expected time until the fastest k of n workers are done.

The model gives P(T_i <= t). The number of workers that are done by t is Poisson-binomial, and E_k[T] is the integral of
P(fewer than k are done by t) dt. All times lie on the lattice s + tau * m, so the integral is a sum over m. It is
exact, by dynamic programming over the workers. Above GROUP_ABOVE workers, those with nearly the same lambda form groups
(`grouped`). Pure functions; the module knows nothing of time, gRPC or the switch.
"""

import numpy as np

from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.grouped import Counts, by_value, grouped_counts, grouped_done
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.estimate.poisson import farthest, poisson_done

GROUP_ABOVE = 64
"""Maximum number of workers for which each worker's own lambda is used."""

DENSE = 128
"""Number of first lattice points that are all evaluated. Of the later points, COARSE evenly spaced points are
evaluated, and all others are interpolated."""

COARSE = 96


def expected_times(estimate: Estimate, live: BoolArray) -> FloatArray:
    """Return E_k[T] in seconds for k = 1..n of the n workers in the mask `live` (workers,), by the Poisson model.

    Workers with a curve use their own distribution. The estimate's `law` says whether the model fits.
    """
    rates, curves, own = _workers(estimate, live)
    points, weights = lattice(max(float(rates.max(initial=0.0)), float(curves.longest.max(initial=0.0))))
    if len(rates) > GROUP_ABOVE:
        counts = grouped_counts(*_grouped_done(rates[~own], curves, points), weights)
    else:
        counts = np.cumsum(each_number(done_by(estimate, live, points))[:-1] @ weights)
    return estimate.service_s + estimate.event_s * counts


def done_by(estimate: Estimate, live: BoolArray, points: FloatArray) -> FloatArray:
    """Return P(T_i <= s + tau * m) of the live workers at ascending whole `points` m (n, points)."""
    rates, curves, own = _workers(estimate, live)
    done = np.empty((len(rates), len(points)))
    done[~own], done[own] = poisson_done(points, rates[~own]), curves.done(points)
    return done


def _workers(estimate: Estimate, live: BoolArray) -> tuple[FloatArray, Curves, BoolArray]:
    """Return the rates of the live workers (n,), the existing curves, and the mask of workers that have a curve
    (n,)."""
    curves = estimate.curves.at(live[estimate.curves.rank])
    return estimate.lambda_s[live] / estimate.event_s, curves, np.isin(np.flatnonzero(live), curves.rank)


def _grouped_done(rates: FloatArray, curves: Curves, points: FloatArray) -> tuple[FloatArray, Counts]:
    """Return P(done by a point) (groups, points) for groups of Poisson workers and of workers with a curve, and the
    groups' sizes."""
    poisson, own = by_value(rates), by_value(curves.rate)
    done = np.concatenate((grouped_done(poisson, points), curves.done(points, own)))
    return done, np.concatenate((poisson.sizes, own.sizes))


def expected_counts(rates: FloatArray) -> FloatArray:
    """Return the expected k-th smallest of independent Poisson(rates[i]), k = 1..n (n,); grouped above GROUP_ABOVE."""
    points, weights = lattice(float(rates.max(initial=0.0)))
    if len(rates) > GROUP_ABOVE:
        groups = by_value(rates)
        return grouped_counts(grouped_done(groups, points), groups.sizes, weights)
    return np.cumsum(each_number(poisson_done(points, rates))[:-1] @ weights)


def expected_counts_of(rates: FloatArray) -> FloatArray:
    """Return `expected_counts` of several sets of workers, (sets, n) for `rates` (sets, n), on one lattice."""
    sets, n = rates.shape
    if n > GROUP_ABOVE:
        return np.array([expected_counts(one_set) for one_set in rates])
    points, weights = lattice(float(rates.max(initial=0.0)))
    done = poisson_done(points, rates.T.ravel()).reshape(n, -1)
    return (np.cumsum(each_number(done)[:-1], axis=0).reshape(n, sets, -1) @ weights).T


def lattice(most: float) -> tuple[FloatArray, FloatArray]:
    """Return points m and weights w such that w @ f(m) is the sum of f over 0, 1, ... if f is linear between points.

    Every m up to DENSE is a point, so small means are exact. Beyond, f is smooth on the scale of the spacing.
    """
    end = farthest(most)
    points = np.arange(min(end, DENSE) + 1, dtype=np.float64)
    if end > DENSE:
        coarse = np.unique(np.linspace(DENSE, end, min(COARSE, end - DENSE) + 1).astype(np.int64))
        points = np.concatenate((points, coarse[1:].astype(np.float64)))
    gaps = np.diff(points)
    weights = np.zeros_like(points)
    weights[:-1] += (gaps + 1) / 2
    weights[1:] += (gaps - 1) / 2
    return points, weights


def each_number(done: FloatArray) -> FloatArray:
    """Return P(exactly j of the workers are done) (n + 1, points) from P(worker i is done) (n, points)."""
    exactly = np.zeros((len(done) + 1, done.shape[1]))
    exactly[0] = 1.0
    for i, p in enumerate(done):
        moved = exactly[: i + 1] * p
        exactly[: i + 1] -= moved
        exactly[1 : i + 2] += moved
    return exactly
