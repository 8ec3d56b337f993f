"""Whether blocking times are Poisson's at all: an absolute test of all workers together, by parametric bootstrap.

The share of blocks that have blocked for at most x events is held against the fitted model's, for some x. What is left
between the two, D(x), is no mere noise of counting: s, tau and every mu were fitted to the same blocks. So windows are
drawn from the fitted model and fitted likewise, and D's distance from theirs is Mahalanobis's: what a wrong tau does to
D, it does to theirs. A lower bound enters D by its chances given that bound. Pure functions; the draws are fixed.
"""

import numpy as np
from scipy import special

from controller.measure import BoolArray, FloatArray
from controller.poisson import poisson_done
from controller.unit import low_time

SEED = 1

REPLICAS = 99
"""Windows that are drawn: a Poisson window is farther than all of them once in 100 times."""

WORKERS = 16
"""Most workers that are looked at, evenly spread from the fastest to the slowest."""

EVENTS = np.array([0.25, 0.5, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 8.0, 12.0])
"""Values of x: between whole counts, as tau is not known exactly. One more is NEAR s."""

NEAR = 0.05
"""Share of s below which times are not told apart."""

IMMATERIAL = 0.02
"""Standard deviation of D that does not matter, and may be noise of the clocks: each window that is drawn gets it."""

LEAST = 8
"""Whole observations of a worker below which it is not looked at."""

FIT_STEPS = 3
"""Towards a drawn window's tau."""


def shape_chance(counts: FloatArray, cut: BoolArray, rates: FloatArray, service: float) -> float:
    """The share of Poisson windows, at least 1 / (REPLICAS + 1), that are as far out as this one.

    `counts` (n, window), NaN where there is none, `rates` (n,) and `service` (s) are in units of tau; `cut` marks lower
    bounds. 1 where too little is known.
    """
    whole = np.sum(~cut & ~np.isnan(counts), axis=1)
    usable = np.flatnonzero((whole >= LEAST) & (rates > 0))
    if not usable.size:
        return 1.0
    by_rate = usable[np.argsort(rates[usable], kind="stable")]
    chosen = by_rate[np.linspace(0, len(by_rate) - 1, min(len(by_rate), WORKERS)).round().astype(np.int64)]
    found = _measured(counts[chosen], cut[chosen], rates[chosen], _levels(np.array([service]))[0])
    return _share_beyond(found, _drawn(rates[chosen], int(np.median(whole[chosen])), service))


def _levels(services: FloatArray) -> FloatArray:
    """All x (windows, levels), ascending."""
    near = np.minimum(NEAR * services, EVENTS[0])
    return np.column_stack((near, np.broadcast_to(EVENTS, (len(services), len(EVENTS)))))


def _measured(counts: FloatArray, cut: BoolArray, rates: FloatArray, levels: FloatArray) -> FloatArray:
    """D (levels,) of what was measured."""
    done = special.pdtr(np.floor(levels), rates[:, None])
    known = ~np.isnan(counts)
    counts = np.where(known, counts, 0.0)
    least = np.floor(counts)
    here, next_ = _tail(least, rates[:, None]), _tail(least + 1, rates[:, None])
    tail = here + (counts - least) * (next_ - here)  # P(N >= c), linear between whole counts
    given = 1 - np.minimum((1 - done[:, None]) / np.maximum(tail, 1e-300)[..., None], 1.0)
    below = np.where(cut[..., None], given, counts[..., None] <= levels)
    shares = np.sum(below * known[..., None], axis=1) / known.sum(axis=1)[:, None]
    return np.asarray((shares - done).mean(axis=0))


def _tail(least: FloatArray, rates: FloatArray) -> FloatArray:
    """P(N >= least)."""
    return np.where(least > 0, special.gammainc(np.maximum(least, 1.0), rates), 1.0)


def _drawn(rates: FloatArray, window: int, service: float) -> FloatArray:
    """D (REPLICAS, levels) of windows that are Poisson's, each under the model that is fitted to it."""
    random = np.random.default_rng(SEED)
    times = np.asarray(service + random.poisson(rates[:, None], (REPLICAS, len(rates), window)), dtype=np.float64)
    lowest = low_time(times.reshape(REPLICAS, -1))
    blocking = np.maximum(times - lowest[:, None, None], 0.0)
    event = _event(blocking)
    means = blocking.mean(axis=2) / event[:, None]
    whole = np.arange(EVENTS[-1] + 1)
    levels = _levels(lowest / event)
    done = poisson_done(whole, means.ravel()).reshape(REPLICAS, len(rates), -1).mean(axis=1)
    expected = np.take_along_axis(done, np.floor(levels).astype(np.int64), axis=1)
    limits = levels * event[:, None]
    seen = np.stack([np.mean(blocking <= limit[:, None, None], axis=(1, 2)) for limit in limits.T], axis=1)
    return np.asarray(seen - expected + random.normal(0.0, IMMATERIAL, seen.shape))


def _event(blocking: FloatArray) -> FloatArray:
    """tau (windows,) of blocking times (windows, workers, window): as model.estimate_event, of whole observations."""
    mean, variance = blocking.mean(axis=2), 0.5 * np.mean(np.diff(blocking, axis=2) ** 2, axis=2)
    event = variance.sum(axis=1) / np.maximum(mean.sum(axis=1), 1e-9)
    for _ in range(FIT_STEPS):
        weight = 1 / (3 * mean / np.maximum(event, 1e-9)[:, None] + 1)
        event = np.sum(weight * variance, axis=1) / np.maximum(np.sum(weight * mean, axis=1), 1e-9)
    return np.asarray(np.maximum(event, 1e-3))


def _share_beyond(found: FloatArray, drawn: FloatArray) -> float:
    """The rank of one vector's distance among those of others, each from the rest of them, as a share."""
    count = len(drawn)
    inverse = np.linalg.pinv(np.cov(drawn.T))
    off, own = drawn - drawn.mean(axis=0), found - drawn.mean(axis=0)
    within = np.einsum("wi,ij,wj->w", off, inverse, off)
    outside = count**2 * (count - 2) / (count - 1) ** 3 * within / (1 - count * within / (count - 1) ** 2)
    return float((1 + np.sum(outside >= own @ inverse @ own)) / (count + 1))
