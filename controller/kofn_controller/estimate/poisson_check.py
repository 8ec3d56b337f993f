"""Tests all workers' blocking times together against Poisson's law, by parametric bootstrap.

For several values of x, D(x) is the share of blocks that were blocked for at most x events, minus the fitted model's
probability. D is not counting noise alone, because s, tau and every mu were fitted to the same blocks. So windows are
drawn from the fitted model and fitted in the same way, and the measured D is compared with the D of the drawn windows
by the Mahalanobis distance. A wrong tau changes both in the same way. Censored counts are replaced by draws from the
worker's own distribution beyond the bound. Pure functions; the draws are fixed.
"""

import numpy as np
from scipy import special

from kofn_controller.estimate.aligned import completed
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.time_scales import low_time

SEED = 1

REPLICAS = 99
"""Number of drawn windows: a true Poisson window is more extreme than all of them once in 100 times."""

WORKERS = 16
"""Maximum number of tested workers, evenly spread from the fastest to the slowest."""

EVENTS = np.array([0.25, 0.5, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 8.0, 12.0])
"""Values of x, in events. They are between whole counts, because tau is not known exactly. No x is below NEAR times
s."""

RATES = np.array([0.5, 1.0, 1.5, 2.5])
"""Further values of x, as multiples of the mean of all mu."""

NEAR = 0.05
"""Share of s below which differences of times are noise."""

IMMATERIAL = 0.02
"""Standard deviation of differences of D that do not matter. Noise of this size is added to each drawn window."""

LEAST = 8
"""Minimum number of uncensored observations of a tested worker."""

NOISE_MOST = 0.6
"""Maximum of the clocks' mean noise, as a share of NEAR times s."""

SEEN = 0.8
"""Minimum share of uncensored observations of a tested worker: with fewer, the worker's fit depends mostly on the
tested model."""

FIT_STEPS = 3
"""Number of steps of the iterations that estimate a drawn window's tau and the noise."""


def shape_chance(counts: FloatArray, cut: BoolArray, rates: FloatArray, service: float) -> float:
    """Return the share of Poisson windows that are at least as extreme as the measured window. It is at least 1 /
    (REPLICAS + 1), and 1 if too little is known.

    `counts` (n, window), in which `cut` marks lower bounds, `rates` (n,) and `service` (s) are in units of tau.
    """
    known = ~np.isnan(counts)
    whole = np.sum(known & ~cut, axis=1)
    usable = np.flatnonzero((whole >= LEAST) & (whole >= SEEN * known.sum(axis=1)) & (rates > 0))
    if not usable.size:
        return 1.0
    by_rate = usable[np.argsort(rates[usable], kind="stable")]
    chosen = by_rate[np.linspace(0, len(by_rate) - 1, min(len(by_rate), WORKERS)).round().astype(np.int64)]
    made = completed(counts[chosen], cut[chosen], rates[chosen])
    found = _measured(made, rates[chosen], _levels(np.array([service]), rates[None, chosen])[0])
    noise = _noise(counts[chosen][~cut[chosen]], NEAR * service)
    return _share_beyond(found, _drawn(rates[chosen], int(np.median(whole[chosen])), service, noise))


def _noise(counts: FloatArray, near: float) -> float:
    """Return the mean of the exponential noise, fitted to the counts (any,) up to `near`; at most NOISE_MOST of
    `near`."""
    below = counts[counts <= near]
    if not below.size or not near > 0:
        return 0.0
    mean, noise = float(below.mean()), near / 2
    for _ in range(FIT_STEPS):  # the mean of counts up to `near` is less than the mean of all
        noise = min(mean + near / np.expm1(near / max(noise, 1e-3 * near)), NOISE_MOST * near)
    return noise


def _levels(services: FloatArray, rates: FloatArray) -> FloatArray:
    """Return all x (windows, levels) for s / tau (windows,) and mu (windows, n)."""
    near = NEAR * services[:, None]
    means = rates.mean(axis=1)[:, None]
    fixed = np.broadcast_to(np.append(0.0, EVENTS), (len(services), 1 + len(EVENTS)))
    return np.asarray(np.maximum(np.concatenate((fixed, means * RATES), axis=1), near))


def _measured(counts: FloatArray, rates: FloatArray, levels: FloatArray) -> FloatArray:
    """Return D (levels,) of the measured counts."""
    share = np.sum(counts[..., None] <= levels, axis=1) / np.sum(~np.isnan(counts), axis=1)[:, None]
    return np.asarray(np.mean(share - special.pdtr(np.floor(levels), rates[:, None]), axis=0))


def _drawn(rates: FloatArray, window: int, service: float, noise: float) -> FloatArray:
    """Return D (REPLICAS, levels) of windows that are drawn from the model. Each window is compared with the model that
    is fitted to this window.

    `noise`: the mean of the clocks' noise.
    """
    random, shape = np.random.default_rng(SEED), (REPLICAS, len(rates), window)
    times = service + random.poisson(rates[:, None], shape) + noise * random.standard_exponential(shape)
    lowest = low_time(times.reshape(REPLICAS, -1))
    blocking = np.maximum(times - lowest[:, None, None], 0.0)
    event = _event(blocking)
    means = blocking.mean(axis=2) / event[:, None]
    levels = _levels(lowest / event, means)
    expected = np.mean(special.pdtr(np.floor(levels)[:, None], means[..., None]), axis=1)
    limits = levels * event[:, None]
    seen = np.stack([np.mean(blocking <= limit[:, None, None], axis=(1, 2)) for limit in limits.T], axis=1)
    slack = random.standard_normal(seen.shape) + random.standard_normal((REPLICAS, 1))  # for each x, and for all
    return np.asarray(seen - expected + IMMATERIAL * np.sqrt(0.5) * slack)


def _event(blocking: FloatArray) -> FloatArray:
    """Return tau (windows,) of blocking times (windows, workers, window), as time_scales.estimate_event does for
    uncensored observations.
    """
    mean, variance = blocking.mean(axis=2), 0.5 * np.mean(np.diff(blocking, axis=2) ** 2, axis=2)
    event = variance.sum(axis=1) / np.maximum(mean.sum(axis=1), 1e-9)
    for _ in range(FIT_STEPS):
        weight = 1 / (3 * mean / np.maximum(event, 1e-9)[:, None] + 1)
        event = np.sum(weight * variance, axis=1) / np.maximum(np.sum(weight * mean, axis=1), 1e-9)
    return np.asarray(np.maximum(event, 1e-3))


def _share_beyond(found: FloatArray, drawn: FloatArray) -> float:
    """Return the share of `drawn` vectors that are at least as far from the other drawn vectors as `found` is
    from all of them."""
    count = len(drawn)
    inverse = np.linalg.pinv(np.cov(drawn.T))
    off, own = drawn - drawn.mean(axis=0), found - drawn.mean(axis=0)
    within = np.einsum("wi,ij,wj->w", off, inverse, off)
    outside = count**2 * (count - 2) / (count - 1) ** 3 * within / (1 - count * within / (count - 1) ** 2)
    return float((1 + np.sum(outside >= own @ inverse @ own)) / (count + 1))
