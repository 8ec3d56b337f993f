"""What became of the scenarios of `kofn chaos`, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from run.summary import PassSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One job of one scenario; `summary` is missing where a process failed or nothing moved."""

    scenario: str
    story: str
    job: int
    passed: bool
    failures: tuple[str, ...]
    summary: PassSummary | None = None


COLUMNS = (
    *("to target", "x fault-free", "iterations", "sent again", "restarts", "rejoins", "regroups"),
    *("stall", "identical", "conserved"),
)
WIDTH = 132
"""Columns of a terminal that the table needs."""


def outcomes_table(target: str, outcomes: Sequence[Outcome]) -> Table:
    """A row a job of a scenario; "x fault-free": its mean iteration time, in that of the fault-free one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(target, no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    reference = next((one.summary for one in outcomes if one.scenario == "fault-free"), None)
    several = {one.scenario for one in outcomes if one.job > 0 and _jobs(outcomes, one.scenario) > 1}
    for one in outcomes:
        name = f"{one.scenario}, job {one.job}" if one.scenario in several else one.scenario
        table.add_row(name, *_cells(one, reference), style=None if one.passed else "red")
    return table


def _jobs(outcomes: Sequence[Outcome], scenario: str) -> int:
    return sum(one.scenario == scenario for one in outcomes)


def _cells(outcome: Outcome, reference: PassSummary | None) -> list[str]:
    """The figures of one row."""
    if (summary := outcome.summary) is None:
        return ["FAILED", *[""] * (len(COLUMNS) - 1)]
    return [
        "never" if summary.time_to_target_s is None else f"{summary.time_to_target_s:.1f} s",
        _times(summary, reference),
        f"{summary.iterations:,}",
        f"{summary.retransmissions:,}",
        *(str(number) if number else "-" for number in (summary.restarts, summary.rejoins, summary.regroups)),
        f"{summary.longest_stall_s:.1f} s",
        "NO" if summary.identity_error else "yes",
        "NO" if summary.conservation_error else "partly" if summary.conservation_unchecked else "exactly",
    ]


def _times(summary: PassSummary, reference: PassSummary | None) -> str:
    """Mean iteration times compared: the scenarios differ in how many iterations they need."""
    if reference is None:
        return "-"
    mean_s, reference_s = (one.duration_s / one.iterations for one in (summary, reference))
    return f"{mean_s / reference_s:.2f}"
