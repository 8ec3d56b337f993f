"""An experiment's findings as text: cells for the terminal and for the report alike."""

import math

from rich.table import Table

from run.evidence import Findings, Row, Spread
from run.table import plain_table

LEGEND = (
    "Medians over the seeds. to: time to the target accuracy; x best k: a seed's time over that of the best fixed k; "
    "k = n / it: how many times faster than waiting for all workers; iterations: to the target; measured, predicted, "
    "off by: mean iteration time; accuracy: the best reached; owned: in the end, of the classes that one worker alone "
    "holds; reached: trainings that came to the target."
)


def headings(found: Findings) -> list[str]:
    """The first row."""
    return [
        "objective",
        f"to {found.target_accuracy:.0%}",
        "min .. max",
        "x best k",
        "k = n / it",
        "iterations",
        "measured",
        "predicted",
        "off by",
        "accuracy",
        "owned",
        "reached",
    ]


def cells(found: Findings) -> list[list[str]]:
    """A row an objective; medians over the seeds."""
    best = found.fixed[0] if found.fixed else None
    return [_row(row, best, found.everyone) for row in found.rows]


def _row(row: Row, best: Row | None, everyone: Row | None) -> list[str]:
    return [
        row.objective,
        _seconds(row.time_s.median),
        f"{_seconds(row.time_s.low)} .. {_seconds(row.time_s.high)}",
        _ratio(row, best),
        _ratio(everyone, row),
        "-" if math.isinf(row.iterations.median) else f"{row.iterations.median:,.0f}",
        _milliseconds(row.measured_s),
        _milliseconds(row.predicted_s),
        "-" if row.error is None else f"{row.error.median:+.1%}",
        f"{row.best_accuracy.median:.1%}",
        "-" if row.owned_accuracy is None else f"{row.owned_accuracy.median:.1%}",
        f"{row.reached} of {row.trainings}",
    ]


def table(found: Findings) -> Table:
    """One scenario for the terminal."""
    return plain_table(headings(found), cells(found), title=found.scenario)


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.1f} s"


def _milliseconds(spread: Spread | None) -> str:
    return "-" if spread is None else f"{1e3 * spread.median:.1f} ms"


def _ratio(one: Row | None, other: Row | None) -> str:
    ratio = math.inf if one is None or other is None else one.against(other)
    return f"{ratio:.2f}" if 0 < ratio < math.inf else "-"
