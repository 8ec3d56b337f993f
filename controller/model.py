"""The model of first-block times: T_i = s + tau * N_i, N_i ~ Poisson(mu_i), lambda_i = tau * mu_i; and what holds instead.

s is the block time when nothing blocks, tau the duration of one blocking event, lambda_i worker i's mean blocking time
(docs/CONTROL.md). Pure functions of arrays; knows nothing of workers' names, k, or time.

Observations that were cut off (lower bounds) enter the likelihood as survival terms. Whether the model holds is tested:
each worker against the others (`goodness`), all against Poisson's law (`shape`) and against independence
(`independence`). Where it does not, times are drawn from what was measured.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from controller.aligned import Aligned
from controller.curves import Curves
from controller.goodness import Fits, check, describe
from controller.independence import independence_chance
from controller.measure import BoolArray, FloatArray
from controller.offset import hidden_blocking
from controller.poisson import interval, poisson_rates
from controller.rows import filled
from controller.shape import shape_chance
from controller.unit import ROUGHLY, TIE, Unit, estimate_event, estimate_service, in_events, outliers

EVENT_SHARE = 0.1
"""tau as a share of s where nothing was blocked and no dispersion can be measured."""

STEP = 1.05
"""Ratio of units over which a rate's dependence on the unit is measured."""

REFUTED = 0.01
"""Chance of a Poisson window, or of one of independent workers, at which the model is given up."""

Law = Literal["poisson", "own", "rows"]
"""What times are drawn from: the model; each worker's own distribution; or whole iterations that were measured."""


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
    curves: Curves  # of these workers; not of who is silent for longer than ever: that is news
    event_error: float = 0.0  # standard error of tau, as a share of it; 0 where it was not estimated
    law: Law = "poisson"  # what times are drawn from
    reason: str = ""  # why
    own: Curves | None = None  # of all workers, under "own"
    rows: FloatArray | None = field(default=None, repr=False)  # counts (n, iterations), under "rows"


def fit(
    times_s: FloatArray, cut: BoolArray, silent_s: FloatArray | None = None, rows: Aligned | None = None
) -> Estimate:
    """Fit the model to first-block times (n, window), oldest first, NaN where unknown; `cut` marks lower bounds.

    `silent_s` (n,) adds one lower bound for each worker where it is above 0. `rows` are the times aligned by iteration:
    without them workers are taken to be independent.
    """
    service_s = estimate_service(times_s, cut)
    blocking_s = np.maximum(times_s - service_s, 0.0)
    unit, fits = _unit(blocking_s, cut, fallback_s=EVENT_SHARE * service_s)
    tau = unit.event_s
    counts = in_events(blocking_s, cut, tau)
    silent = np.full(len(cut), np.nan)
    if silent_s is not None:
        silent = np.where(silent_s > service_s, (silent_s - service_s) / tau + TIE, np.nan)
    bounded, ends = np.column_stack((counts, silent)), np.column_stack((cut, np.ones(len(cut), dtype=np.bool_)))
    rate, blocks = poisson_rates(bounded, ends, np.maximum(fits.rate, 1e-3))
    low, high = interval(rate, _less_by_unit(bounded, ends, rate, blocks, unit) / fits.excess, unit.freedom)
    whole = np.sum(~cut & ~np.isnan(times_s), axis=1)
    found = Estimate(
        service_s=service_s,
        event_s=tau,
        event_error=float(np.sqrt(2 / max(unit.freedom, 2.0))),
        lambda_s=tau * rate,
        low_s=tau * low,
        high_s=np.where(whole > 0, tau * high, np.inf),
        hidden_s=tau * hidden_blocking(rate, whole, service_s / tau),
        blocks=blocks,
        dispersion=fits.dispersion,
        poisson=fits.poisson,
        curves=fits.curves.at(~(silent[fits.curves.rank] > fits.curves.longest)),
    )
    if rows is not None:
        rows = Aligned(in_events(np.maximum(rows.values - service_s, 0.0), rows.cut, tau), rows.cut)
    return _with_law(found, fits, counts, cut, silent, rows)


def _with_law(
    found: Estimate, fits: Fits, counts: FloatArray, cut: BoolArray, silent: FloatArray, rows: Aligned | None
) -> Estimate:
    """What holds of all workers together, and why; all in units of tau."""
    rate, told = found.lambda_s / found.event_s, _told(counts, silent)
    independence = independence_chance(rows.values, rows.cut, fits.rate) if rows is not None else 1.0
    if rows is not None and independence <= REFUTED:
        reason = f"iterations as measured: workers do not block independently (p = {independence:.2g})"
        return replace(found, law="rows", reason=reason, rows=_whole(rows, told, cut, rate))
    like = fits.poisson
    shape = shape_chance(counts[like], cut[like], fits.rate[like], found.service_s / found.event_s)
    if shape <= REFUTED:
        reason = f"own distributions: blocking is not Poisson's (p = {shape:.2g})"
        return replace(found, law="own", reason=reason, own=Curves.of(np.arange(len(told)), told, cut, rate))
    reason = f"Poisson: not refuted (shape p = {shape:.2f}, independence p = {independence:.2f})"
    return replace(found, reason=reason)


def _told(counts: FloatArray, silent: FloatArray) -> FloatArray:
    """Counts without those of who is silent for longer than any of them: nothing is known of it but its rate."""
    longest = np.max(counts, axis=1, where=~np.isnan(counts), initial=0.0)
    return np.where((silent > longest)[:, None], np.nan, counts)


def _whole(rows: Aligned, told: FloatArray, cut: BoolArray, rate: FloatArray) -> FloatArray:
    """The iterations (n, iterations) of which anything is known, the rest filled in."""
    unknown = np.isnan(told)
    values = np.where(unknown.all(axis=1, keepdims=True), np.nan, rows.values)
    some = ~np.all(np.isnan(values), axis=0)
    kept = Aligned(values[:, some], (rows.cut & ~np.isnan(values))[:, some])
    return filled(kept, told, cut & ~unknown, rate)


def _unit(blocking_s: FloatArray, cut: BoolArray, *, fallback_s: float) -> tuple[Unit, Fits]:
    """tau of the workers that have one in common, and which these are."""
    unit = estimate_event(blocking_s, cut, fallback_s=fallback_s)
    aside = np.any(outliers(blocking_s, cut, fallback_s), axis=1)
    fits = check(in_events(blocking_s, cut, unit.event_s), cut, aside=np.asarray(aside))
    if fits.poisson.all():
        return unit, fits
    unit = estimate_event(blocking_s[fits.poisson], cut[fits.poisson], fallback_s=fallback_s)
    return unit, describe(in_events(blocking_s, cut, unit.event_s), cut, fits.poisson)


def _less_by_unit(counts: FloatArray, cut: BoolArray, rate: FloatArray, blocks: FloatArray, unit: Unit) -> FloatArray:
    """Information `blocks` less what is lost because the unit is estimated, too.

    A mean of whole observations does not depend on the unit; what a lower bound adds to the mean does.
    """
    rows = np.flatnonzero(np.any(cut & ~np.isnan(counts), axis=1) & (rate > 0))
    if not np.isfinite(unit.freedom) or not rows.size:
        return blocks
    bounds = np.where(cut[rows], TIE + (counts[rows] - TIE) / STEP, counts[rows] / STEP)
    moved = STEP * poisson_rates(bounds, cut[rows], rate[rows], ROUGHLY)[0]
    slope = (moved - rate[rows]) / np.log(STEP)
    less = blocks.copy()
    less[rows] = rate[rows] / (rate[rows] / np.maximum(blocks[rows], 1e-3) + slope**2 * 2 / unit.freedom)
    return less
