"""The model of first-block times: T_i = s + tau * N_i, N_i ~ Poisson(mu_i), lambda_i = tau * mu_i; or its replacement.

s is the block time without blocking, tau the duration of one blocking event, lambda_i worker i's mean blocking time
(docs/explanation/control.md). Pure functions of arrays; knows nothing of workers' names, k, or time.

Censored observations (lower bounds) enter the likelihood as survival terms. The model is tested: each worker against
the others (`dispersion_check`), all against Poisson's law (`shape`) and against independence (`independence`). If it is
refuted, times are drawn from the measurements.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kofn.controller.estimate.aligned import align, completed, filled
from kofn.controller.estimate.curves import Curves
from kofn.controller.estimate.dispersion_check import Fits, check, describe
from kofn.controller.estimate.independence_check import independence_chance
from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.controller.estimate.poisson import TIE, interval, poisson_rates
from kofn.controller.estimate.poisson_check import shape_chance
from kofn.controller.estimate.time_scales import (
    EventDuration,
    estimate_event,
    estimate_service,
    hidden_blocking,
    in_events,
    outliers,
)

EVENT_SHARE = 0.1
"""tau as a share of s where nothing was blocked and no dispersion can be measured."""

STEP = 1.05
"""Ratio of taus over which a rate's dependence on tau is measured."""

REFUTED = 0.01
"""Chance of a Poisson window, or of one of independent workers, at which the model is given up."""

TESTED_EVERY = 8
"""Iterations between two tests: half of the default window is the same."""

Law = Literal["poisson", "empirical", "bootstrap"]
"""The source of drawn times: the model; each worker's own distribution; or whole measured iterations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The fitted model of n workers; arrays are (n,)."""

    service_s: float  # s
    event_s: float  # tau
    lambda_s: FloatArray  # mean blocking times
    low_s: FloatArray  # their confidence interval, where s is right: s + low_s to s + high_s is that of the mean time
    high_s: FloatArray  # infinite where nothing is known, or nothing but lower bounds
    hidden_s: float = 0.0  # by so much lambda may be above high_s, and s below: blocking that is always there
    blocks: FloatArray  # whole observations' worth of information; a lower bound counts for less than one
    dispersion: FloatArray  # var / (tau * mean) of the blocking times: 1 where Poisson fits; NaN where unknown
    poisson: BoolArray  # False where a worker's blocking times are not Poisson's as the others' are
    curves: Curves  # of these workers; without those that are silent for longer than ever
    event_error: float = 0.0  # standard error of tau, as a share of it; 0 where it was not estimated
    law: Law = "poisson"  # what times are drawn from
    reason: str = ""  # why
    tested: int = 0  # the latest iteration when it was
    own: Curves | None = None  # of all workers, under "empirical"
    rows: FloatArray | None = field(default=None, repr=False)  # counts (n, iterations), under "bootstrap"


def fit(
    times_s: FloatArray,
    cut: BoolArray,
    silent_s: FloatArray | None = None,
    iterations: NDArray[np.int64] | None = None,
    before: Estimate | None = None,
) -> Estimate:
    """Fit the model to first-block times (n, window), oldest first, NaN where unknown; `cut` marks lower bounds.

    `silent_s` (n,) adds one lower bound for each worker where it is above 0. `iterations` (n, window) gives the
    iteration of each time, 0 for none; without it workers count as independent. `before`, an estimate of the same
    workers, saves time: the search for rates starts there, and recent tests are not repeated.
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
        law, reason = _tested(fits, taken, cut, iterations, service_s / tau)
        found = replace(found, law=law, reason=reason, tested=latest)
    return _with_times(found, taken, cut, silent, iterations)


def _tested(
    fits: Fits, taken: FloatArray, cut: BoolArray, iterations: NDArray[np.int64] | None, service: float
) -> tuple[Law, str]:
    """Return the law of all workers together, and the reason; all in units of tau, bounds as they were measured."""
    independence = 1.0 if iterations is None else independence_chance(taken, cut, iterations, fits.rate, service)
    if independence <= REFUTED:
        return "bootstrap", f"iterations as measured: workers do not block independently (p = {independence:.2g})"
    shape = shape_chance(taken[fits.poisson], cut[fits.poisson], fits.rate[fits.poisson], service)
    if shape <= REFUTED:
        return "empirical", f"own distributions: blocking is not Poisson's (p = {shape:.2g})"
    return "poisson", f"Poisson: not refuted (shape p = {shape:.2f}, independence p = {independence:.2f})"


def _with_times(
    found: Estimate, taken: FloatArray, cut: BoolArray, silent: FloatArray, iterations: NDArray[np.int64] | None
) -> Estimate:
    """With what times are drawn from where Poisson's law does not hold."""
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
    """Return the counts without those of workers that are silent for longer than any of theirs: only their rate is
    known.
    """
    longest = np.max(counts, axis=1, where=~np.isnan(counts), initial=0.0)
    return np.where((silent > longest)[:, None], np.nan, counts)


def _with_silence(
    counts: FloatArray, cut: BoolArray, silent: FloatArray, fits: Fits, event: EventDuration
) -> tuple[FloatArray, FloatArray]:
    """Return the rates (n,), and their information less the loss from estimating tau."""
    if np.isnan(silent).all():
        return fits.rate, _less_by_event(counts, cut, fits.rate, fits.blocks, event)
    counts, cut = np.column_stack((counts, silent)), np.column_stack((cut, np.ones(len(cut), dtype=np.bool_)))
    rate, blocks = poisson_rates(counts, cut, np.maximum(fits.rate, 1e-3))
    return rate, _less_by_event(counts, cut, rate, blocks, event)


def _event_duration(
    blocking_s: FloatArray, cut: BoolArray, before: Estimate | None, *, fallback_s: float
) -> tuple[EventDuration, Fits]:
    """tau of the workers that have one in common, and which these are."""
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

    A mean of whole observations does not depend on tau; the part that a lower bound adds to the mean does.
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
