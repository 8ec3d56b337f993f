"""The outcomes of the scenarios of `kofn chaos`, as a table and as rows of results.csv."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kofn.experiments.tables import Columns, TextTable
from kofn.experiments.trials import Row
from kofn.report.formatting import integer, seconds
from kofn.report.frames import summary_columns
from kofn.report.summary import TrialSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """One job of one scenario; `summary` is missing where a process failed or the job stood still."""

    scenario: str
    story: str
    job: int
    passed: bool
    failures: tuple[str, ...]
    summary: TrialSummary | None = None


def _conserved(one: TrialSummary) -> str:
    """Return whether gradients were conserved; "-" for a collective whose sums have no ledger."""
    if one.conservation_error:
        return "NO"
    return "partly" if one.conservation_unchecked else "exactly" if one.ledger else "-"


COLUMNS: Columns[TrialSummary] = {
    "iterations": lambda one: f"{one.iterations:,}",
    "retransmitted": lambda one: integer(one.retransmissions),
    "restarts": lambda one: f"{one.restarts or '-'}",
    "rejoins": lambda one: f"{one.rejoins or '-'}",
    "regroups": lambda one: f"{one.regroups or '-'}",
    "stall": lambda one: f"{one.longest_stall_s:.1f} s",
    "identical": lambda one: "NO" if one.identity_error else "yes",
    "conserved": _conserved,
}


def outcomes_table(target: str, outcomes: Sequence[ScenarioOutcome]) -> TextTable:
    """Return a row for each job of a scenario.

    "x fault-free": its mean iteration time in that of the fault-free scenario, where that one ran.
    """
    reference = next((one.summary for one in outcomes if one.scenario == "fault-free"), None)
    against: Columns[TrialSummary] = {"x fault-free": lambda one: _times(one, reference)} if reference else {}
    columns = {"to target": lambda one: seconds(one.time_to_target_s), **against, **COLUMNS}
    jobs = Counter(one.scenario for one in outcomes)
    return TextTable(
        headings=[target, *columns],
        cells=[[_name(one, jobs[one.scenario]), *_cells(columns, one.summary)] for one in outcomes],
        failed=frozenset(number for number, one in enumerate(outcomes) if not one.passed),
    )


def _name(outcome: ScenarioOutcome, jobs: int) -> str:
    return f"{outcome.scenario}, job {outcome.job}" if jobs > 1 else outcome.scenario


def _cells(columns: Columns[TrialSummary], summary: TrialSummary | None) -> list[str]:
    if summary is None:
        return ["FAILED", *[""] * (len(columns) - 1)]
    return [cell(summary) for cell in columns.values()]


def _times(summary: TrialSummary, reference: TrialSummary) -> str:
    """Compare mean iteration times, as the scenarios need different numbers of iterations."""
    mean_s, reference_s = (one.duration_s / one.iterations for one in (summary, reference))
    return f"{mean_s / reference_s:.2f}"


def outcome_row(target: str, outcome: ScenarioOutcome) -> Row:
    """Return a row of the table of trials."""
    facts = {"experiment": "chaos", "target": target, "scenario": outcome.scenario, "job": outcome.job}
    return {**facts, "passed": outcome.passed, **(summary_columns(outcome.summary) if outcome.summary else {})}
