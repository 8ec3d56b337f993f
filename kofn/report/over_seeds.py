"""The runs of one configuration with several seeds: each trial's means and intervals, compared seed by seed."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from kofn.report.interval import Interval
from kofn.report.summary import RunSummary, Summary, TrialSummary
from kofn.report.table import PlainTable
from kofn_common.results.provenance import Provenance
from kofn_host.workload import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOverSeeds:
    """One objective's results over the seeds. A value is None if no seed has it."""

    objective: str
    runs: int
    """Number of runs whose trial ended and was not changed by hand. All values below are from these runs."""
    reached: int
    """Number of these runs that reached the target."""
    time_to_target_s: Interval | None
    iterations_to_target: Interval | None
    mean_iteration_s: Interval | None
    bytes_sent: Interval | None
    against_baseline: Interval | None
    """The baseline's time to the target divided by this trial's, for the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """One job's trials over the seeds."""

    job: int
    metric: Metric | None
    compared: bool
    """Whether the last trial is a baseline."""
    trials: tuple[TrialOverSeeds, ...]

    def rows(self) -> list[list[str]]:
        return [
            ["runs (reached the target)", *(f"{entry.runs} ({entry.reached})" for entry in self.trials)],
            ["time to the target", *_cells(self.trials, "time_to_target_s", "{:.1f} s")],
            ["baseline / this, by seed", *_cells(self.trials, "against_baseline", "{:.2f}")],
            ["iterations to target", *_cells(self.trials, "iterations_to_target", "{:.0f}")],
            ["mean iteration time", *_cells(self.trials, "mean_iteration_s", "{:.1f} ms", 1e3)],
            ["sent", *_cells(self.trials, "bytes_sent", "{:.1f} MB", 1e-6)],
        ]

    def headings(self) -> list[str]:
        names = [entry.objective for entry in self.trials]
        return [*names[:-1], f"{names[-1]} (baseline)"] if self.compared else names

    def table(self, heading: str) -> PlainTable:
        return PlainTable([heading, *self.headings()], self.rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsSummary:
    """All seeds of a run; `summaries` has the seeds that were begun."""

    seeds: tuple[int, ...]
    summaries: dict[int, RunSummary]
    jobs: tuple[OverSeeds, ...]
    early_end: str
    provenance: Provenance

    @property
    def failures(self) -> list[str]:
        begun = [f"seed {seed}: {reason}" for seed, summary in self.summaries.items() for reason in summary.failures]
        left = [seed for seed in self.seeds if seed not in self.summaries]
        return [*begun, *(f"seed {seed}: not run: {self.early_end}" for seed in left)]

    @property
    def notes(self) -> list[str]:
        """The notes of all seeds, those of single seeds, and a note if the commit is unknown."""
        known = {seed: replace(summary, provenance=None).notes for seed, summary in self.summaries.items()}
        every = [note for note in next(iter(known.values()), []) if all(note in notes for notes in known.values())]
        single = [f"seed {seed}: {note}" for seed, notes in known.items() for note in notes if note not in every]
        return [*every, *single, *self.provenance.notes]

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": not self.failures and all(summary.to_dict()["ok"] for summary in self.summaries.values()),
            "failures": self.failures,
            "early_end": self.early_end,
            "seeds": list(self.seeds),
            "over_seeds": [asdict(job) for job in self.jobs],
            "provenance": msgspec.to_builtins(self.provenance),
        }

    def parts(self) -> list[PlainTable]:
        """Return the tables for the terminal, one for each job."""
        heading = f"mean (95 % interval), n = {len(self.summaries)}"
        return [job.table(heading if len(self.jobs) == 1 else f"job {job.job}, {heading}") for job in self.jobs]


def over_seeds(several: Sequence[Summary]) -> OverSeeds:
    """Combine one job's summaries, one for each seed."""
    first, longest = several[0], max(several, key=lambda summary: len(summary.trials))
    return OverSeeds(
        job=first.job,
        metric=first.metric,
        compared=any(summary.baseline for summary in several),
        trials=tuple(_trial(several, place, entry.objective) for place, entry in enumerate(longest.trials)),
    )


def _trial(several: Sequence[Summary], place: int, objective: str) -> TrialOverSeeds:
    """Combine the trials that have the number `place` in each run."""
    found = [(summary, summary.trials[place]) for summary in several if place < len(summary.trials)]
    whole = [(summary, entry) for summary, entry in found if not entry.early_end and not entry.by_hand]
    entries = [entry for _, entry in whole]
    ratios = [ratio for summary, entry in whole if (ratio := summary.against(entry)) is not None]
    return TrialOverSeeds(
        objective=objective,
        runs=len(entries),
        reached=sum(entry.time_to_target_s is not None for entry in entries),
        time_to_target_s=_interval(entries, lambda entry: entry.time_to_target_s),
        iterations_to_target=_interval(entries, lambda entry: entry.iterations_to_target),
        mean_iteration_s=_interval(entries, lambda entry: entry.mean_iteration_s),
        bytes_sent=_interval(entries, lambda entry: entry.bytes_sent),
        against_baseline=Interval.of(ratios),
    )


def _interval(entries: Sequence[TrialSummary], value: Callable[[TrialSummary], float | None]) -> Interval | None:
    return Interval.of([float(number) for entry in entries if (number := value(entry)) is not None])


def _cells(trials: Sequence[TrialOverSeeds], name: str, form: str, scale: float = 1.0) -> list[str]:
    """Return the texts of the intervals, with the number of values if some runs have no value."""
    cells = []
    for entry in trials:
        interval: Interval | None = getattr(entry, name)
        fewer = f", n = {interval.n}" if interval and interval.n < entry.runs else ""
        cells.append("-" if interval is None else interval.text(form, scale) + fewer)
    return cells
