"""The table after a run: the results of each trial, and where the gradients went.

The table has at most 14 rows, not counting the rows about faults and the rows of logged numbers.

The report and `--details` show all rows (`Summary.rows()`).
"""

from collections.abc import Callable, Sequence

from kofn.report.formatting import counts, integer, milliseconds, ratio
from kofn.report.summary import RunSummary, Summary, TrialSummary, conserved, identical, time_to_target
from kofn.report.table import PlainTable
from kofn_common.results.ranks import FEW, each


def headlines(summary: Summary) -> list[str]:
    """Return a sentence for each trial but the baseline, and a sentence about the worker with most late gradients."""
    if summary.metric is None or not summary.trials:
        return []
    compared = [entry for entry in summary.trials if entry is not summary.baseline]
    return [*_alone(summary), *(_reached(summary, entry) for entry in compared), *_latest(compared[-1:])]


def brief_tables(run: RunSummary) -> list[PlainTable]:
    """Return a table for each job with a finished iteration. The table has a column for each trial."""
    single = len(run.jobs) == 1
    return [
        PlainTable(["" if single else f"job {job.job}", *job.headings()], brief_rows(job))
        for job in run.jobs
        if job.trials
    ]


def brief_rows(summary: Summary) -> list[list[str]]:
    """Return the rows: a label, and a cell for each trial."""
    rows: list[tuple[str, Callable[[TrialSummary], str], bool]] = [
        (f"time to {summary.metric.goal}" if summary.metric else "", time_to_target, summary.metric is not None),
        (_against(summary), lambda entry: ratio(summary.against(entry)), summary.baseline is not None),
        ("one worker alone / this", lambda entry: ratio(summary.against_alone(entry)), summary.alone is not None),
        ("iterations", lambda entry: integer(entry.iterations), True),
        ("mean iteration time", lambda entry: milliseconds(entry.mean_iteration_s), True),
        ("k, and how often", _k, True),
        ("rule for late gradients", _rule, any(entry.in_force for entry in summary.trials)),
        ("gradients in a sum, mean", _gradients, _any(summary, "summed_by_worker")),
        ("latest worker's in sums", _latest_cell, _any(summary, "late_by_worker")),
        ("share of the sums", _shares, _any(summary, "share_by_worker")),
        ("STARVED", lambda entry: entry.starved or "none", any(entry.starved for entry in summary.trials)),
        ("gradient bytes sent", _bytes, summary.compresses),
        ("refused by the switch, from", lambda entry: counts(entry.refused), _any(summary, "refused")),
        ("replicas bit-identical", identical, True),
        ("gradients conserved", lambda entry: conserved(entry) if entry.ledger else "-", True),
    ]
    shown_rows = [[label, *map(cell, summary.trials)] for label, cell, shown in rows if shown]
    return [*summary.logged_rows(), *shown_rows]


def _any(summary: Summary, name: str) -> bool:
    return any(any(getattr(entry, name)) for entry in summary.trials)


def _against(summary: Summary) -> str:
    return f"{summary.baseline.objective} / this" if summary.baseline else ""


def _k(entry: TrialSummary) -> str:
    """Return the k of most iterations, and their share."""
    if not entry.k_iterations:
        return "-"
    k = max(entry.k_iterations, key=entry.k_iterations.__getitem__)
    return f"{k} in {100 * entry.k_iterations[k] / sum(entry.k_iterations.values()):.0f} %"


def _rule(entry: TrialSummary) -> str:
    """Return the rules in the order in which they came into force."""
    return "/".join(dict.fromkeys(decision.late_gradient for decision in entry.in_force)) or "-"


def _gradients(entry: TrialSummary) -> str:
    return f"{sum(entry.summed_by_worker) / entry.iterations:.2f}" if entry.ledger else "-"


def _latest_rank(entry: TrialSummary) -> int | None:
    """Return the worker with most late gradients; None if no gradient was late."""
    late: Sequence[int] = entry.late_by_worker
    return max(range(len(late)), key=lambda rank: late[rank]) if any(late) and entry.ledger else None


def _latest_cell(entry: TrialSummary) -> str:
    rank = _latest_rank(entry)
    if rank is None:
        return "none was late"
    return f"{rank}: {entry.summed_by_worker[rank]:.0f} of {entry.entered_by_worker[rank]:.0f}"


def _shares(entry: TrialSummary) -> str:
    shares = [100 * share for share in entry.share_by_worker]
    return each(shares, "{:.0f}".format if len(shares) <= FEW else "{:.3g}".format, separator="/") + " %"


def _bytes(entry: TrialSummary) -> str:
    return f"{100 * entry.compressed.wire_ratio:.0f} % of float32" if entry.compressed else "-"


def _alone(summary: Summary) -> list[str]:
    if summary.alone is None or summary.metric is None:
        return []
    reached = summary.alone.time_to_target_s
    if reached is None:
        return [f"One worker alone did not reach {summary.metric.goal} in {summary.alone.iterations} iterations."]
    return [f"One worker alone: {summary.metric.goal} after {reached:.1f} s."]


def _reached(summary: Summary, entry: TrialSummary) -> str:
    assert summary.metric is not None
    if entry.time_to_target_s is None:
        return f"{entry.name} did not reach {summary.metric.goal}."
    others = [(summary.against_alone(entry), "one worker alone")]
    if summary.baseline and entry is not summary.baseline:
        others.insert(0, (summary.against(entry), summary.baseline.objective))
    words = " and ".join(f"{_times(times)} than {other}" for times, other in others if times is not None)
    reached = f"{entry.name}: {summary.metric.goal} after {entry.time_to_target_s:.1f} s"
    return f"{reached}, {words}." if words else f"{reached}."


def _times(ratio: float) -> str:
    """Return how much faster or slower, in words."""
    return f"{ratio:.1f} x faster" if ratio >= 1 else f"{1 / ratio:.1f} x slower"


def _latest(entries: Sequence[TrialSummary]) -> list[str]:
    return [
        f"{entry.name}: {entry.late_by_worker[rank]} gradients of worker {rank} were late; of the"
        f" {entry.entered_by_worker[rank]:.0f} gradients that it finished {entry.summed_by_worker[rank]:.1f} entered a"
        f" sum, {entry.discarded_by_worker[rank]:.1f} lost their weight to age."
        for entry in entries
        if (rank := _latest_rank(entry)) is not None
    ]
