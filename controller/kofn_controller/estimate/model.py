"""The model of first-block times: T_i = s + tau * N_i, N_i ~ Poisson(mu_i), lambda_i = tau * mu_i.

s is the block time without blocking, tau the duration of one blocking event, lambda_i worker i's mean blocking time
(docs/explanation/control.md). Pure functions of arrays; knows nothing of workers' names, k, or time.

Censored observations (lower bounds) enter the likelihood as survival terms. The model is tested: each worker against
the others (`dispersion_check`), all workers against Poisson's law (`poisson_check`) and for independence
(`independence_check`). If a test of all workers rejects it, times are drawn from the measurements instead.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kofn_controller.estimate.aligned import align, completed, filled
from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.dispersion_check import Fits, check, describe
from kofn_controller.estimate.independence_check import independence_chance
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.poisson import TIE, interval, poisson_rates
from kofn_controller.estimate.poisson_check import shape_chance
from kofn_controller.estimate.time_scales import (
    EventDuration,
    estimate_event,
    estimate_service,
    hidden_blocking,
    in_events,
    outliers,
)

EVENT_SHARE = 0.1
"""tau as a share of s while no worker was blocked and no dispersion can be measured."""

STEP = 1.05
"""Ratio of the two taus between which the dependence of a rate on tau is measured."""

REFUTED = 0.01
"""p value of a test at which the model is rejected."""

TESTED_EVERY = 8
"""Iterations between two tests: half of the default window is new by then."""

Law = Literal["poisson", "empirical", "bootstrap"]
"""The source of drawn times: the model, each worker's own distribution, or whole measured iterations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The fitted model of n workers; arrays are (n,)."""

    service_s: float  # s
    event_s: float  # tau
    lambda_s: FloatArray  # mean blocking times
    low_s: FloatArray  # lower ends of their confidence intervals, for this s
    high_s: FloatArray  # upper ends; infinite if nothing but lower bounds is known
    hidden_s: float = 0.0  # most blocking that may be in every time; lambda would be larger, s smaller
    blocks: FloatArray  # information in uncensored observations; a lower bound counts for less than one
    dispersion: FloatArray  # var / (tau * mean) of the blocking times: 1 where Poisson fits; NaN if unknown
    poisson: BoolArray  # False where a worker's dispersion differs from the others'
    curves: Curves  # of the workers with poisson False, except those silent for longer than ever before
    event_error: float = 0.0  # standard error of tau, as a share of tau; 0 if tau was not estimated
    law: Law = "poisson"  # the source of drawn times
    reason: str = ""  # why this law was taken
    tested: int = 0  # the latest iteration at the time of the test
    own: Curves | None = None  # own distributions of all workers, under "empirical"
    rows: FloatArray | None = field(default=None, repr=False)  # counts (n, iterations), under "bootstrap"


def fit(
    times_s: FloatArray,
    cut: BoolArray,
    silent_s: FloatArray | None = None,
    iterations: NDArray[np.int64] | None = None,
    before: Estimate | None = None,
    racks: int = 1,
) -> Estimate:
    """Fit the model to first-block times (n, window), oldest first, NaN where unknown; `cut` marks lower bounds.

    `silent_s` (n,) is the time in seconds for which each worker has been silent. It adds one lower bound for each
    worker whose silence exceeds s. `iterations` (n, window) gives the iteration of each time, 0 for none; without
    `iterations`, workers count as independent. `before`, an estimate of the same workers, saves time: the search for
    rates starts there, and recent tests are not repeated. The workers are in `racks` racks of equal size, rack by rack.
    """
    service_s = estimate_service(times_s, cut)
    blocking_s = np.maximum(times_s - service_s, 0.0)
    event, fits = _event_duration(blocking_s, cut, before, fallback_s=EVENT_SHARE * service_s)
    tau = event.event_s
    counts = in_events(blocking_s, cut, tau)
    silent = np.full(len(cut), np.nan)
    if silent_s is not None:
        silent = np.where(silent_s > service_s, (silent_s - service_s) / tau + TIE, np.nan)
    rate, told = _with_silence(counts, cut, silent, fits, event)
    low, high = interval(rate, told / fits.excess, event.freedom)
    whole = np.sum(~cut & ~np.isnan(times_s), axis=1)
    found = Estimate(
        service_s=service_s,
        event_s=tau,
        event_error=float(np.sqrt(2 / max(event.freedom, 2.0))),
        lambda_s=tau * rate,
        low_s=tau * low,
        high_s=np.where(whole > 0, tau * high, np.inf),
        hidden_s=tau * hidden_blocking(rate, whole, service_s / tau),
        blocks=told,
        dispersion=fits.dispersion,
        poisson=fits.poisson,
        curves=fits.curves.at(~(silent[fits.curves.rank] > fits.curves.longest)),
    )
    taken = blocking_s / tau
    latest = 0 if iterations is None else int(iterations.max(initial=0))
    if before is not None and before.tested <= latest < before.tested + TESTED_EVERY:
        found = replace(found, law=before.law, reason=before.reason, tested=before.tested)
    else:
        law, reason = _tested(fits, taken, cut, iterations, service_s / tau, racks)
        found = replace(found, law=law, reason=reason, tested=latest)
    return _with_times(found, taken, cut, silent, iterations)


def _tested(
    fits: Fits,
    taken: FloatArray,
    cut: BoolArray,
    iterations: NDArray[np.int64] | None,
    service: float,
    racks: int,
) -> tuple[Law, str]:
    """Test all workers together, and return the law and its reason. Times are in units of tau."""
    independence = 1.0
    if iterations is not None:
        independence = independence_chance(taken, cut, iterations, fits.rate, service, racks)
    if independence <= REFUTED:
        return "bootstrap", f"iterations as measured: workers do not block independently (p = {independence:.2g})"
    shape = shape_chance(taken[fits.poisson], cut[fits.poisson], fits.rate[fits.poisson], service)
    if shape <= REFUTED:
        return "empirical", f"own distributions: blocking is not Poisson's (p = {shape:.2g})"
    return "poisson", f"Poisson: not refuted (shape p = {shape:.2f}, independence p = {independence:.2f})"


def _with_times(
    found: Estimate, taken: FloatArray, cut: BoolArray, silent: FloatArray, iterations: NDArray[np.int64] | None
) -> Estimate:
    """Add the distributions, or the iterations, from which times are drawn if Poisson's law is rejected."""
    if found.law == "poisson":
        return found
    rate = found.lambda_s / found.event_s
    told = _told(taken, silent)
    if found.law == "empirical":
        return replace(found, own=Curves.of(np.arange(len(told)), told, cut, rate))
    if found.law == "bootstrap" and iterations is not None:
        values = completed(told, cut & ~np.isnan(told), rate)
        rows = align(values, iterations)
        return replace(found, rows=filled(rows[:, ~np.isnan(rows).all(axis=0)], values, rate))
    return found


def _told(counts: FloatArray, silent: FloatArray) -> FloatArray:
    """Return the counts, with NaN for all counts of a worker whose present silence is longer than any of them."""
    longest = np.max(counts, axis=1, where=~np.isnan(counts), initial=0.0)
    return np.where((silent > longest)[:, None], np.nan, counts)


def _with_silence(
    counts: FloatArray, cut: BoolArray, silent: FloatArray, fits: Fits, event: EventDuration
) -> tuple[FloatArray, FloatArray]:
    """Return the rates (n,), and their information (_less_by_event). Each worker's present silence is a further lower
    bound."""
    if np.isnan(silent).all():
        return fits.rate, _less_by_event(counts, cut, fits.rate, fits.blocks, event)
    counts, cut = np.column_stack((counts, silent)), np.column_stack((cut, np.ones(len(cut), dtype=np.bool_)))
    rate, blocks = poisson_rates(counts, cut, np.maximum(fits.rate, 1e-3))
    return rate, _less_by_event(counts, cut, rate, blocks, event)


def _event_duration(
    blocking_s: FloatArray, cut: BoolArray, before: Estimate | None, *, fallback_s: float
) -> tuple[EventDuration, Fits]:
    """Return tau, estimated from the workers that share it, and the fits of all workers."""
    event = estimate_event(blocking_s, cut, fallback_s=fallback_s)
    aside = np.any(outliers(blocking_s, cut, fallback_s), axis=1)
    start = None if before is None else np.maximum(before.lambda_s / event.event_s, 1e-3)
    fits = check(in_events(blocking_s, cut, event.event_s), cut, aside=np.asarray(aside), start=start)
    if fits.poisson.all():
        return event, fits
    before_s, event = event.event_s, estimate_event(blocking_s[fits.poisson], cut[fits.poisson], fallback_s=fallback_s)
    return event, describe(
        in_events(blocking_s, cut, event.event_s),
        cut,
        fits.poisson,
        np.maximum(fits.rate * before_s / event.event_s, 1e-3),
    )


def _less_by_event(
    counts: FloatArray, cut: BoolArray, rate: FloatArray, blocks: FloatArray, event: EventDuration
) -> FloatArray:
    """Return the information `blocks` less the loss from estimating tau.

    A mean of uncensored observations does not depend on tau; the part that a lower bound adds to the mean does.
    """
    rows = np.flatnonzero(np.any(cut & ~np.isnan(counts), axis=1) & (rate > 0))
    if not np.isfinite(event.freedom) or not rows.size:
        return blocks
    bounds = np.where(cut[rows], TIE + (counts[rows] - TIE) / STEP, counts[rows] / STEP)
    moved = STEP * poisson_rates(bounds, cut[rows], rate[rows], np.inf)[0]  # one step is near enough
    slope = (moved - rate[rows]) / np.log(STEP)
    less = blocks.copy()
    less[rows] = rate[rows] / (rate[rows] / np.maximum(blocks[rows], 1e-3) + slope**2 * 2 / event.freedom)
    return less
