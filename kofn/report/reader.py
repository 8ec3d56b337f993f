"""The folder of a run, or of a run with several seeds, as data frames, also during the run and after it was
stopped."""

import html
import io
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pandas as pd
from rich.console import Group

from kofn.report.frames import (
    TABLES,
    DerivedValues,
    GradientArrival,
    HostLink,
    LoggedNumber,
    TimelineInterval,
    TrialKey,
    TrialSetting,
    WorkerKey,
)
from kofn.report.in_force import in_force
from kofn.report.recoveries import read_lines
from kofn.report.results import SEED, Results, SeveralRuns
from kofn.report.summarise import summarise_run
from kofn.report.summary import RunSummary, StoredSummary, Summary, stored_summary
from kofn.report.table import plain_console
from kofn_common.config.schema import Config
from kofn_common.results.errors import ResultsError
from kofn_common.results.event_log import read_event_log
from kofn_common.results.folder import RunFolder, TrialFolder
from kofn_common.results.link_bytes import read_links
from kofn_common.results.worker_metrics import WorkerMetrics, read_trial, read_worker
from kofn_host.workload import metric_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kofn.report.drawings import Drawing

UNLIMITED = 10_000
"""The width, in columns, of a console that cuts no text."""

NO_END = "it is still running, or was killed (SIGKILL)"
"""The early end of a run whose record has no reason."""


class Run(Results):
    """The results of one run. Each data frame is read from the files at its first use, and then kept.

    A notebook shows a run as its summary and a figure.
    """

    contender = "trial"

    def __init__(self, path: Path) -> None:
        self._folder = RunFolder.open(path)
        self._record = self._folder.record()
        self.configs = tuple(self._folder.configs())
        """The configurations of all jobs, with every default and the command line's choices."""

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._folder.path

    @property
    def runs(self) -> Mapping[str, "Run"]:
        """This run alone, under an empty name."""
        return {"": self}

    @property
    def axes(self) -> Sequence[str]:
        """The job, if there are several."""
        return ("job",) if len(self.configs) > 1 else ()

    @property
    def report(self) -> Path | None:
        """The path of the page, if it exists."""
        path = self.folder / "report.html"
        return path if path.exists() else None

    @property
    def finished(self) -> bool:
        """Whether all trials ended."""
        return self._record.finished == len(self._record.trials)

    @property
    def ok(self) -> bool:
        """Whether the run is finished, nothing failed, and no trial was changed by hand."""
        return self.finished and all(job.ok for job in self._summary.jobs)

    @property
    def failures(self) -> list[str]:
        """The reasons why the run failed, a sentence each: a missed target, different replicas, lost gradients."""
        return self._summary.failures

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row for each trial, job, worker and iteration."""
        return TABLES["metrics"].frame(
            (trial.worker_key(worker.rank), line)
            for trial in self._trials
            for worker in trial.workers
            for line in worker.iterations
        )

    @cached_property
    def logged(self) -> pd.DataFrame:
        """A row for each number that a script logged (kofn_torch's session.log)."""
        return TABLES["logged"].frame(
            (
                trial.worker_key(worker.rank),
                LoggedNumber(iteration=line.iteration, time=line.time, name=name, value=value),
            )
            for trial in self._trials
            for worker in trial.workers
            for line in worker.logged
            for name, value in line.logged.items()
        )

    @cached_property
    def k(self) -> pd.DataFrame:
        """A row for each rule and k that came into force."""
        return TABLES["k"].frame(
            (trial.key, decision)
            for trial in self._trials
            for decision in in_force(read_lines(trial.folder.status), trial.folder.decisions)
        )

    @cached_property
    def arrivals(self) -> pd.DataFrame:
        """A row for each gradient that a worker began."""
        return TABLES["arrivals"].frame(
            (trial.worker_key(rank), arrival) for trial in self._trials for rank, arrival in _arrivals(trial.workers)
        )

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """A row for each pass, wait and transfer of a layer; none without [schedule]."""
        return TABLES["timeline"].frame(
            (trial.worker_key(worker.rank), interval)
            for trial in self._trials
            for worker in trial.workers
            for interval in _timeline(worker)
        )

    @cached_property
    def links(self) -> pd.DataFrame:
        """A row for each host's link; none for a running trial or a simulation."""
        return TABLES["links"].frame(
            (trial.key, HostLink(host=host, to_switch_bytes=sent, from_switch_bytes=received))
            for trial in self._trials
            for host, (sent, received) in read_links(trial.folder.links).items()
        )

    @cached_property
    def events(self) -> pd.DataFrame:
        """A row for each event at a process, a link or an objective."""
        return TABLES["events"].frame(
            (trial.key, event) for trial in self._trials for event in read_event_log(trial.folder.events)
        )

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each trial with a finished iteration, with the values of `kofn run`'s table."""
        return TABLES["summary"].frame(
            (trial.key, TrialSetting.of(trial.config), entry, DerivedValues.of(entry))
            for job in self._summary.jobs
            for trial, entry in zip(self._of_job(job.job), job.trials, strict=False)
        )

    def figures(self) -> "list[Figure]":
        """Return the figures of the report; ModuleNotFoundError without kofn[plots]."""
        return [drawing.draw() for drawing in self._drawings()]

    def __repr__(self) -> str:
        text = io.StringIO()
        plain_console(file=text, width=UNLIMITED, force_terminal=False, force_jupyter=False).print(
            Group(*self._summary.parts())
        )
        return "\n".join([self._headline, *(line.rstrip() for line in text.getvalue().splitlines())])

    def _repr_html_(self) -> str:
        tables = (_html(job) for job in self._summary.jobs if job.trials)
        return "\n".join([f"<p>{html.escape(self._headline)}</p>", *tables, self._figure()])

    def _figure(self) -> str:
        """Return the report's first figure; empty without kofn[plots] or an iteration."""
        try:
            from kofn.report.svg import svg  # noqa: PLC0415  # needs kofn[plots]

            return next((svg(drawing.draw()) for drawing in self._drawings()), "")
        except ModuleNotFoundError:
            return ""

    def _drawings(self) -> "Iterator[Drawing]":
        from kofn.report.page import job_drawings  # noqa: PLC0415  # matplotlib takes half a second

        for job in zip(self._folder.jobs, self.configs, self._summary.jobs, strict=True):
            yield from job_drawings(*job)

    @property
    def _headline(self) -> str:
        if self.finished:
            return f"{self.folder}: {'; '.join([*self.failures, *self._summary.notes]) or 'ok'}"
        trials = f"{self._record.finished} of {len(self._record.trials)} trials ended"
        return f"{self.folder}: {trials}; {self._record.ended or NO_END}"

    @cached_property
    def _summary(self) -> RunSummary:
        """Return the written summary, or a summary that is computed from the files so far."""
        if not (self.folder / "summary.json").exists():
            return summarise_run(self._folder, self.configs, self._record.ended or NO_END)
        stored = _stored(self.folder)
        return RunSummary(
            jobs=tuple(
                Summary(
                    job=job.id,
                    metric=metric_of(config),
                    trials=written.trials,
                    compresses=config.compress.compresses,
                    alone=written.alone,
                    early_end=written.early_end,
                )
                for job, config, written in zip(self._folder.jobs, self.configs, stored.jobs or (stored,), strict=True)
            ),
            provenance=self._record.provenance,
            load=self._record.load,
        )

    @cached_property
    def _trials(self) -> "list[_Trial]":
        """Return every trial of every job."""
        return [
            _Trial(folder=folder, job=job.id, config=config, ended=number < self._record.finished)
            for job, config in zip(self._folder.jobs, self.configs, strict=True)
            for number, folder in enumerate(job.trials)
        ]

    def _of_job(self, job: int) -> "list[_Trial]":
        return [trial for trial in self._trials if trial.job == job]


class Seeds(SeveralRuns):
    """The results of a run with several seeds: those of the seeds that have begun."""

    contender = "trial"

    def __init__(self, path: Path) -> None:
        self._opened = RunFolder.open(path, several_seeds=True)

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._opened.path

    @property
    def axes(self) -> Sequence[str]:
        """The job, if there are several."""
        return ("job",) if len(self._opened.record().jobs) > 1 else ()

    @cached_property
    def labels(self) -> Mapping[str, Mapping[str, object]]:
        """The seed of each begun run, by the name of the run's folder."""
        names = {f"seed-{seed}": {SEED: seed} for seed in self._opened.record().seeds}
        return {name: labels for name, labels in names.items() if (self.folder / name / "run.json").exists()}

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """The begun runs, by the name of the run's folder."""
        return {name: Run(self.folder / name) for name in self.labels}

    @property
    def baseline(self) -> str | None:
        """The last trial."""
        trials = [objective for objective, _ in self._opened.record().trials]
        return trials[-1] if len(trials) > 1 else None


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """One trial of one job, and its workers' files."""

    folder: TrialFolder
    job: int
    config: Config
    ended: bool

    @property
    def key(self) -> TrialKey:
        return TrialKey(trial=self.folder.name, job=self.job)

    def worker_key(self, rank: int) -> WorkerKey:
        return WorkerKey(trial=self.folder.name, job=self.job, worker=rank)

    @cached_property
    def workers(self) -> tuple[WorkerMetrics, ...]:
        """Return the workers' metrics so far; ResultsError if the trial has ended, but has no metrics."""
        workers = self.config.job.workers
        if self.ended:
            return read_trial(self.folder, workers)
        return tuple(read_worker(self.folder, rank) for rank in range(workers))


def _timeline(worker: WorkerMetrics) -> Iterator[TimelineInterval]:
    first_s = next((line.started for line in worker.iterations if line.started is not None), 0.0)
    for line in worker.iterations:
        for what, layer, begin_s, end_s in map(msgspec.structs.astuple, line.timeline or ()):
            since_s = (line.started or 0.0) - first_s
            yield TimelineInterval(
                iteration=line.iteration,
                schedule=line.schedule or "",
                what=what,
                layer=layer,
                begin_s=begin_s + since_s,
                end_s=end_s + since_s,
            )


def _stored(folder: Path) -> StoredSummary:
    try:
        return stored_summary(folder)
    except ValueError as error:
        raise ResultsError(f"{folder / 'summary.json'}: not the summary of a run: {error}") from error


def _arrivals(workers: Sequence[WorkerMetrics]) -> Iterator[tuple[int, GradientArrival]]:
    """Yield each gradient with its worker's rank, and its place among the gradients of the same iteration."""
    left: dict[int, list[float]] = {}
    begun = [
        (worker.rank, line, line.started, line.first_block_s)
        for worker in workers
        for line in worker.iterations
        if line.started is not None and line.first_block_s is not None
    ]
    for _, line, started, first_block_s in begun:
        left.setdefault(line.iteration, []).append(started + first_block_s)
    for times in left.values():
        times.sort()
    for rank, line, started, first_block_s in begun:
        yield (
            rank,
            GradientArrival(
                iteration=line.iteration,
                started=started,
                first_block_s=first_block_s,
                blocking_s=line.blocking_s or 0.0,
                injected_mean_s=line.injected_mean_s,
                place=1 + bisect_left(left[line.iteration], started + first_block_s),
                in_sum=bool(int(line.members, 16) >> rank & 1),
                late=line.late,
                age=line.age or 0,
            ),
        )


def _html(summary: Summary) -> str:
    """Return a job's table."""
    labels, *columns = zip(*summary.rows(), strict=True)
    table = pd.DataFrame(dict(enumerate(columns)), index=list(labels))
    table.columns = pd.Index(summary.headings())
    return table.to_html()
