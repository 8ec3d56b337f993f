"""Findings as text: cells for the terminal and for the report alike."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean, geometric_mean

from run.choice.evidence import MEAN, MEDIAN, NEVER, Findings, Ratios, Row, constants
from run.spread import Spread

LEGEND = (
    "Times to the target accuracy over those of the best fixed rule and k in hindsight, seed by seed "
    f"(never: {NEVER:g} times the fastest). median, mean (geometric): over the seeds; others: against the rule and k "
    "that are the best of the other seeds; no: above 5 % in the median; NO: above 15 % in the mean. k = n / it: how "
    "many times faster than waiting for all. least share: of the sums, in times of an equal one. changes: of rule or k "
    "in a training; undone: back to what was left a short time before."
)

SCENARIO_HEADINGS = (
    *("objective", "to target", "min .. max", "median", "mean", "k = n / it", "iterations", "measured", "predicted"),
    *("off by", "least share", "owned", "changes", "undone", "reached"),
)

WORLD_HEADINGS = (
    *("world", "n", "rate", "best fixed", "to target", "it takes", "median", "mean", "others", ""),
    *("k = n / it", "ends with", "changes", "undone"),
)

SUMMARY_HEADINGS = (
    "n",
    "rate",
    "scenarios",
    "median <= 1.05",
    "mean <= 1.15",
    "mean",
    "worst",
    "others",
    "best that never changes",
    "it",
)


def scenario_cells(found: Findings) -> list[list[str]]:
    """A row an objective."""
    return [_row(found, row) for row in found.rows]


def _row(found: Findings, row: Row) -> list[str]:
    ratios = found.ratios(row)
    return [
        row.objective,
        seconds(row.time_s.median),
        f"{seconds(row.time_s.low)} .. {seconds(row.time_s.high)}",
        "-" if ratios is None else f"{ratios.median:.2f}",
        "-" if ratios is None else f"{ratios.mean:.2f}",
        _faster(found, row),
        "-" if math.isinf(row.iterations.median) else f"{row.iterations.median:,.0f}",
        _milliseconds(row.measured_s),
        _milliseconds(row.predicted_s),
        "-" if row.error is None else f"{row.error.median:+.1%}",
        "-" if math.isnan(row.least_share) else f"{row.least_share:.2f}",
        "-" if row.owned_accuracy is None else f"{row.owned_accuracy.median:.1%}",
        f"{row.changes:.1f}",
        f"{row.undone:.1f}",
        f"{row.reached} of {row.trainings}",
    ]


def world_cells(found: Iterable[Findings], objective: str) -> Iterator[list[str]]:
    """A row a scenario: what an objective that chooses comes to in it."""
    for one in found:
        if (row := one.row(objective)) is not None:
            yield _world(one, row)


def _world(one: Findings, row: Row) -> list[str]:
    ratios, best = one.ratios(row), one.best
    return [
        one.world,
        f"{one.workers}",
        f"{one.rate:g}",
        "-" if best is None else best.objective,
        "never" if best is None else seconds(best.time_s.median),
        seconds(row.time_s.median),
        *(
            ["-"] * 4
            if ratios is None
            else [f"{ratios.median:.2f}", f"{ratios.mean:.2f}", _others(ratios), mark(ratios)]
        ),
        _faster(one, row),
        row.ends_with,
        f"{row.changes:.1f}",
        f"{row.undone:.1f}",
    ]


def summary_cells(found: Sequence[Findings], objective: str) -> Iterator[list[str]]:
    """A row for each number of workers and learning rate, one for each number, and one for all."""
    by_rate = sorted(found, key=lambda one: (one.workers, one.rate))
    for workers, of in groupby(by_rate, key=lambda one: one.workers):
        several = list(of)
        for rate, at in groupby(several, key=lambda one: one.rate):
            yield from _summary(f"{workers}", f"{rate:g}", list(at), objective)
        yield from _summary(f"{workers}", "all", several, objective)
    yield from _summary("all", "all", by_rate, objective)


def _summary(workers: str, rate: str, found: Sequence[Findings], objective: str) -> Iterator[list[str]]:
    several = [ratios for one in found if (row := one.row(objective)) and (ratios := one.ratios(row))]
    if not several:
        return
    constant = constants(found)
    best = min(constant, key=lambda name: constant[name], default=None)
    others = [ratios.others for ratios in several if ratios.others is not None]
    yield [
        workers,
        rate,
        f"{len(several)}",
        f"{fmean(ratios.median <= MEDIAN for ratios in several):.0%}",
        f"{fmean(ratios.mean <= MEAN for ratios in several):.0%}",
        f"{geometric_mean([ratios.mean for ratios in several]):.2f}",
        f"{max(ratios.mean for ratios in several):.2f}",
        f"{geometric_mean(others):.2f}" if others else "-",
        best or "-",
        f"{constant[best]:.2f}" if best else "-",
    ]


def mark(ratios: Ratios) -> str:
    """As LEGEND has it."""
    return "NO" if ratios.mean > MEAN else "no" if ratios.median > MEDIAN else "yes"


def seconds(value: float) -> str:
    """A time to the target."""
    return "never" if math.isinf(value) else f"{value:.1f} s"


def _others(ratios: Ratios) -> str:
    return "-" if ratios.others is None else f"{ratios.others:.2f}"


def _faster(found: Findings, row: Row) -> str:
    """Than waiting for all."""
    everyone = found.everyone and found.ratios(found.everyone)
    ratios = found.ratios(row)
    return "-" if not everyone or ratios is None else f"{everyone.mean / ratios.mean:.2f}"


def _milliseconds(spread: Spread | None) -> str:
    return "-" if spread is None else f"{1e3 * spread.median:.1f} ms"
