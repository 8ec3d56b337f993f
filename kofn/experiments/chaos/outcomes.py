"""The outcomes of the scenarios of `kofn chaos`, as a table and as rows of results.csv."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kofn.experiments.tables import Columns, TextTable
from kofn.report.formatting import integer, seconds
from kofn.report.frames import summary_columns
from kofn.report.summary import TrialSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """The outcome of a job in a scenario; without `summary` a process failed or the job stood still."""

    scenario: str
    story: str
    job: int
    passed: bool
    failures: tuple[str, ...]
    summary: TrialSummary | None = None


def _conserved(summary: TrialSummary) -> str:
    """Return whether gradients were conserved; "-" for a collective whose sums have no ledger."""
    if summary.conservation_error:
        return "NO"
    return "partly" if summary.conservation_unchecked else "exactly" if summary.ledger else "-"


COLUMNS: Columns[TrialSummary] = {
    "iterations": lambda summary: f"{summary.iterations:,}",
    "retransmitted": lambda summary: integer(summary.retransmissions),
    "restarts": lambda summary: f"{summary.restarts or '-'}",
    "rejoins": lambda summary: f"{summary.rejoins or '-'}",
    "regroups": lambda summary: f"{summary.regroups or '-'}",
    "stall": lambda summary: f"{summary.longest_stall_s:.1f} s",
    "identical": lambda summary: "NO" if summary.identity_error else "yes",
    "conserved": _conserved,
}


def outcomes_table(target: str, outcomes: Sequence[ScenarioOutcome]) -> TextTable:
    """Return a row for each job of a scenario.

    The column "x fault-free" is the mean iteration time divided by that of the fault-free scenario, if that scenario
    ran.
    """
    reference = next((outcome.summary for outcome in outcomes if outcome.scenario == "fault-free"), None)
    against: Columns[TrialSummary] = {"x fault-free": lambda summary: _times(summary, reference)} if reference else {}
    columns = {"to target": lambda summary: seconds(summary.time_to_target_s), **against, **COLUMNS}
    jobs = Counter(outcome.scenario for outcome in outcomes)
    return TextTable(
        headings=[target, *columns],
        cells=[[_name(outcome, jobs[outcome.scenario]), *_cells(columns, outcome.summary)] for outcome in outcomes],
        failed=frozenset(number for number, outcome in enumerate(outcomes) if not outcome.passed),
    )


def _name(outcome: ScenarioOutcome, jobs: int) -> str:
    return f"{outcome.scenario}, job {outcome.job}" if jobs > 1 else outcome.scenario


def _cells(columns: Columns[TrialSummary], summary: TrialSummary | None) -> list[str]:
    if summary is None:
        return ["FAILED", *[""] * (len(columns) - 1)]
    return [cell(summary) for cell in columns.values()]


def _times(summary: TrialSummary, reference: TrialSummary) -> str:
    """Return the ratio of mean iteration times. The ratio of durations would mislead, because scenarios need different
    numbers of iterations."""
    mean_s, reference_s = (trial.duration_s / trial.iterations for trial in (summary, reference))
    return f"{mean_s / reference_s:.2f}"


def outcome_row(target: str, outcome: ScenarioOutcome) -> Mapping[str, object]:
    """Return an outcome's row in the table of trials."""
    facts = {"experiment": "chaos", "target": target, "scenario": outcome.scenario, "job": outcome.job}
    return {**facts, "passed": outcome.passed, **(summary_columns(outcome.summary) if outcome.summary else {})}
