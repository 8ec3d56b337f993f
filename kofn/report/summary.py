"""The results of a run's trials, compared: a trial that misses its target or fails a check makes the run fail."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kofn.report.compressed import Compressed, compressed_rows, misfit_rows
from kofn.report.explained import LOGGED
from kofn.report.formatting import (
    by_worker,
    counts,
    integer,
    link_bytes,
    milliseconds,
    percentages,
    ratio,
    seconds,
    shares,
    significant,
    traffic,
    weights,
)
from kofn.report.in_force import InForce
from kofn.report.interventions import Intervention
from kofn.report.table import PlainTable
from kofn_common.results.account import STARVED
from kofn_common.results.errors import ResultsError
from kofn_common.results.memory import Memory
from kofn_common.results.provenance import Provenance
from kofn_common.results.ranks import FEW, each, name_workers
from kofn_host.workload import Metric

COARSE = 0.01
"""A note is given if more than this share of the gradients' elements does not fit. Without compression, a note is also
given if lanes of 32 bits leave over more than this share of the gradients' norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """The results of one trial; times in seconds from the first worker's first iteration."""

    objective: str
    """The objective that chose k."""
    time_to_target_s: float | None
    """Until a worker first had the target accuracy; None if no worker had."""
    iterations_to_target: int | None
    """The iteration after which a worker first had the target accuracy; None if no worker had."""
    duration_s: float
    iterations: int
    best_accuracy: float | None
    """The metric's best value; None if unknown."""
    owned_accuracy: float | None
    """The accuracy at the end on the classes that only one worker holds; None without such classes."""
    median_iteration_s: float
    mean_iteration_s: float
    predicted_iteration_s: float | None
    """The controller's mean prediction of the iteration time; None without predictions."""
    late_gradients: int
    """Gradients of all workers whose iteration ended before they were ready, also those that were given up."""
    late_by_worker: tuple[int, ...]
    discarded_by_worker: tuple[float, ...]
    """Gradients, by weight, that were discarded because they were late."""
    bytes_sent: int | None
    """Payload of UDP and TCP, by all workers; for gloo and MPI, which do not count, the bytes that a ring sends. None,
    here and below, if a worker did not come to its end."""
    bytes_received: int | None
    packets_sent: int | None
    """Packets of kofn's protocol, here and below; None for TCP, whose segments and retransmissions are unknown."""
    packets_received: int | None
    retransmissions: int | None
    """Retransmitted contributions."""
    k_iterations: dict[int, int]
    restarts: int
    """Restarts of processes."""
    rejoins: int
    """Times that a worker attached to the controller again."""
    regroups: int
    """Times that the switch had lost the job's slots."""
    longest_stall_s: float
    """The longest time in which no worker finished an iteration."""
    checksum_errors: int | None
    """Corrupted packets that the workers dropped."""
    switch_checksum_errors: int
    """Corrupted packets that the switch dropped, of all jobs."""
    peer_fetches: int | None
    """Times that a worker asked its peers for results."""
    missed_events: tuple[str, ...]
    """Events that were missed, and why."""
    resumed: tuple[str, ...]
    """The resumptions of the training at a checkpoint, each with the repeated and lost work."""
    identity_error: str | None
    """The first difference between replicas; None if they are identical."""
    conservation_error: str | None
    """The first gradients that are lost or aggregated twice; None without a fault."""
    conservation_unchecked: str | None
    """The part of the conservation that could not be checked; None if everything was checked."""
    compressed: Compressed | None = None
    """The bytes of the gradients; None if the workers did not report them."""
    entered_by_worker: tuple[float, ...] = ()
    """Gradients that entered the ledger."""
    summed_by_worker: tuple[float, ...] = ()
    """Gradients in sums, by weight."""
    share_by_worker: tuple[float, ...] = ()
    """Share of the gradients in all sums, 0 to 1."""
    age_by_worker: tuple[float, ...] = ()
    """Mean age of the gradients when they were contributed, in iterations."""
    age_most: int = 0
    """The largest age of a gradient when it was contributed, in iterations."""
    waiting_by_worker: tuple[float, ...] = ()
    """Gradients that are pending at the end, by weight."""
    late_for: int = 0
    """Iterations since a sum first closed without a gradient that still waits; 0: none waits."""
    starved_by_worker: tuple[int, ...] = ()
    """The largest number of gradients in a row that are in no sum."""
    in_force: tuple[InForce, ...] = ()
    """Rules for late gradients and ks as they came into force."""
    collective: str = "switch"
    """The value of job.collective."""
    ledger: bool = True
    """Whether the workers kept a ledger: workers that sum among themselves leave nothing pending."""
    times_s: dict[str, float] = field(default_factory=dict)
    """Parts of an iteration's time (results.worker_metrics.Iteration: compute, encode, ... step): means over all
    workers' iterations but the first. They add up to the workers' mean iteration time."""
    link_bytes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes of Ethernet frames in the whole trial, by host: to the switch and from the switch, counted by the
    kernel."""
    switch_counters: dict[str, int] = field(default_factory=dict)
    """Packets that the switch's program counted, of all jobs, by the data plane's names."""
    refused: dict[str, int] = field(default_factory=dict)
    """Packets that the switch refused, of all jobs, by the sender's host and port."""
    memory: Memory | None = None
    """Memory of arrays between two iterations, at the worker that keeps most; None if no worker reports it."""
    interventions: tuple[Intervention, ...] = ()
    """Changes during the trial by an event of the configuration or by an operator, in the order of time."""
    objective_faults: tuple[str, ...] = ()
    """Faults of an objective that gave no costs, and when: k then stayed as it was."""
    logged: dict[str, float] = field(default_factory=dict)
    """A script's own numbers (session.log), by name: the mean of all workers' last values."""
    early_end: str = ""
    """The reason why the trial ended before the training did; empty if the training ended."""
    outage_s: float = 0.0
    """The time between the interruptions of the training and its resumptions. No other time includes it."""
    diverged: bool = False
    """Whether the workers ended because their parameters were too large or not finite."""

    @property
    def name(self) -> str:
        """The objective, and the changes during the trial."""
        changes = [f"{change.words} ({change.iteration})" for change in self.interventions]
        if len(changes) > 1:
            by_hand = sum(change.by_hand for change in self.interventions)
            changes = [f"{len(changes)} changes" + (f", {by_hand} by hand" if by_hand else "")]
        return ", ".join([self.objective, *changes])

    @property
    def by_hand(self) -> list[str]:
        """The changes by an operator: the trial is then not the configured one, and is not compared."""
        return [str(change) for change in self.interventions if change.by_hand]

    @property
    def broken(self) -> list[str]:
        """Faults of the training, even if it reached its target: different replicas, lost gradients."""
        return [error for error in (self.identity_error, self.conservation_error) if error]

    @property
    def starved(self) -> str:
        """The workers with many gradients in a row in no sum, as text; empty: no worker."""
        found = {rank: row for rank, row in enumerate(self.starved_by_worker) if row >= STARVED}
        if len(found) > FEW:
            return f"{name_workers(found)} (up to {max(found.values())} gradients)"
        return ", ".join(f"worker {rank} ({row} gradients)" for rank, row in found.items())

    def failures(self, metric: Metric | None) -> list[str]:
        """Return the reasons why this trial does not count, one sentence each. Without a metric a missed target is no
        reason."""
        reasons = [*self.broken, *self.objective_faults[:1]]
        if self.early_end:
            reasons.append(f"did not end: {self.early_end}")
        elif self.diverged:
            reasons.append(f"diverged: ended after iteration {self.iterations} (model.learning_rate is too large?)")
        elif metric is not None and self.time_to_target_s is None:
            target, best = metric.text(metric.target), metric.text(self.best_accuracy)
            reasons.append(f"{metric.name} {target} was not reached in {self.iterations} iterations (best {best})")
        return [f"trial {self.objective}: {reason}" for reason in reasons]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """One worker that trained alone, without a network; times in seconds from the worker's first iteration."""

    time_to_target_s: float | None
    """Seconds to the target; None: not reached."""
    iterations: int
    duration_s: float


class StoredSummary(msgspec.Struct, frozen=True):
    """The fields of summary.json that kofn reads; with several jobs, `jobs` have the trials."""

    ok: bool = False
    failures: tuple[str, ...] = ()
    early_end: str = ""
    not_compared: tuple[str, ...] = ()
    metric: Metric | None = None
    trials: tuple[TrialSummary, ...] = ()
    alone: Alone | None = None
    jobs: "tuple[StoredSummary, ...]" = ()


def stored_summary(folder: Path) -> StoredSummary:
    """Read the summary; OSError without a file, msgspec.DecodeError for other content."""
    return msgspec.json.decode((folder / "summary.json").read_bytes(), type=StoredSummary)


def stored_trials(folder: Path, *, several: bool = False, partial: bool = False) -> tuple[TrialSummary, ...]:
    """Read the trials of a finished run of one job. With `several`, the run may have several jobs, and the first job's
    trials are read.

    Raise ResultsError if the run ended early and `partial` is false, if the run had several seeds, or if it had several
    jobs and `several` is false. Raise OSError without a file, msgspec.DecodeError for other content.
    """
    stored = stored_summary(folder)
    if stored.early_end and not partial:
        raise ResultsError(f"{folder}: the run did not end: {stored.early_end}")
    (trials,) = [job.trials for job in stored.jobs[:1]] if several and stored.jobs else [stored.trials]
    if not trials:
        raise ResultsError(f"{folder}: summary.json has no trial of one job")
    return trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One job's whole run; the last trial is the baseline."""

    job: int
    metric: Metric | None
    """The metric with the target of the trials; None without a metric."""
    trials: tuple[TrialSummary, ...]
    compresses: bool = False
    """Whether fewer bytes are sent than a gradient has in float32."""
    alone: Alone | None = None
    """One worker alone, if run.alone asked for it."""
    early_end: str = ""
    """The reason why the run ended before its last trial did; empty if all trials ended."""
    not_run: tuple[str, ...] = ()
    """Objectives of the trials that finished no iteration."""

    @property
    def failures(self) -> list[str]:
        """Every reason why the run failed; empty if nothing failed."""
        reasons = [reason for entry in self.trials for reason in entry.failures(self.metric)]
        return [*reasons, *(f"trial {objective}: not run: {self.early_end}" for objective in self.not_run)]

    @property
    def ok(self) -> bool:
        """Whether no trial failed, and no trial was changed by hand."""
        return not self.failures and not self.not_compared

    @property
    def notes(self) -> list[str]:
        """Warnings: trials that were not compared or checked, or were resumed, and gradients that did not fit."""
        unchecked = [
            f"trial {entry.objective}: not checked: {entry.conservation_unchecked}"
            for entry in self.trials
            if entry.conservation_unchecked
        ]
        resumed = [f"trial {entry.objective}: {words}" for entry in self.trials for words in entry.resumed]
        outages = [
            f"trial {entry.objective}: its times do not include {entry.outage_s:.1f} s from interruption to resumption"
            for entry in self.trials
            if entry.outage_s
        ]
        return [*self.not_compared, *resumed, *outages, *unchecked, *self._coarse]

    @property
    def _coarse(self) -> list[str]:
        """Return a warning for each trial with gradients that did not fit the lanes or the ledger."""
        return [
            f"trial {entry.objective}: {share:.0%} of the gradients did not fit: too small, too large or changing too"
            " fast for one scale of 32 bits; what is rounded to 0 trains late or not at all"
            for entry in self.trials
            if entry.compressed and (share := self._misfit(entry.compressed)) > COARSE
        ]

    def _misfit(self, compressed: Compressed) -> float:
        """Return the share of misfits, or the share of the norm that lanes of 32 bits leave over, if that is larger."""
        return max(compressed.misfits or 0.0, 0.0 if self.compresses else min(1.0, compressed.error or 0.0))

    @property
    def not_compared(self) -> list[str]:
        """Why a trial is not compared with the others, one sentence each."""
        return [
            f"trial {entry.objective} was changed by hand ({', '.join(entry.by_hand)}): it is not compared"
            for entry in self.trials
            if entry.by_hand
        ]

    @property
    def baseline(self) -> TrialSummary | None:
        """The trial that the others are compared with: the last one, if it was run and not changed by hand."""
        if len(self.trials) < 2 or self.not_run or self.trials[-1].by_hand:
            return None
        return self.trials[-1]

    def against(self, entry: TrialSummary) -> float | None:
        """Return the baseline's time to the target divided by this trial's time; None if the trials cannot be
        compared."""
        baseline_s = self.baseline.time_to_target_s if self.baseline else None
        if entry.by_hand or entry.time_to_target_s is None or baseline_s is None:
            return None
        return baseline_s / entry.time_to_target_s

    def against_alone(self, entry: TrialSummary) -> float | None:
        """Return the time to the target of one worker alone divided by this trial's time; None if the two times cannot
        be compared. The ratio is a lower bound if the one worker did not reach the target."""
        if entry.by_hand or entry.time_to_target_s is None or self.alone is None:
            return None
        return (self.alone.time_to_target_s or self.alone.duration_s) / entry.time_to_target_s

    @property
    def best(self) -> TrialSummary | None:
        """The trial that was the first at the target, among the trials that are compared with the baseline; None if no
        trial is compared."""
        compared = [entry for entry in self.trials if entry is not self.baseline and self.against(entry) is not None]
        return min(compared, key=lambda entry: entry.time_to_target_s or 0.0, default=None)

    @property
    def speedup(self) -> float | None:
        """The value of against() for the first trial."""
        return self.against(self.trials[0]) if self.trials else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "failures": self.failures,
            "job": self.job,
            "metric": self.metric and asdict(self.metric),
            "speedup": self.speedup,
            "not_compared": self.not_compared,
            "notes": self.notes,
            "early_end": self.early_end,
            "not_run": list(self.not_run),
            "alone": self.alone and asdict(self.alone),
            "trials": [{"name": entry.name} | asdict(entry) for entry in self.trials],
        }

    def rows(self) -> list[list[str]]:
        """Return the table: a label and a cell for each trial."""
        return [
            *self._target(),
            *self._row("changed in mid-run", _changes, shown=self._any("interventions")),
            *self._row("iterations in all", lambda entry: integer(entry.iterations)),
            *self._row("median iteration time", lambda entry: milliseconds(entry.median_iteration_s)),
            *self._row("mean iteration time", lambda entry: milliseconds(entry.mean_iteration_s)),
            *self.logged_rows(),
            *self._row("compute/code/net/wait/step", lambda entry: shares(entry.times_s), shown=self._any("times_s")),
            *self._row("as predicted", lambda entry: milliseconds(entry.predicted_iteration_s)),
            *self._row("k used (iterations)", lambda entry: counts(entry.k_iterations)),
            *self._row("rule:k (from iteration)", _first_and_last_rule),
            *self._row("late gradients", lambda entry: by_worker(entry.late_by_worker)),
            *self._shares(),
            *self._row("sent", lambda entry: traffic(entry.bytes_sent, entry.packets_sent)),
            *self._row("received", lambda entry: traffic(entry.bytes_received, entry.packets_received)),
            *self._row(
                "links, to/from the switch", lambda entry: link_bytes(entry.link_bytes), shown=self._any("link_bytes")
            ),
            *self._row(
                "counted by the switch",
                lambda entry: counts(entry.switch_counters),
                shown=self._any("switch_counters"),
            ),
            *self._row(
                "refused by the switch, from",
                lambda entry: counts(entry.refused),
                shown=self._any("refused"),
            ),
            *self._row(
                "memory of a worker",
                lambda entry: entry.memory.words if entry.memory else "-",
                shown=self._any("memory"),
            ),
            *(compressed_rows([entry.compressed for entry in self.trials]) if self.compresses else []),
            *misfit_rows([entry.compressed for entry in self.trials]),
            *self._row("retransmissions", lambda entry: integer(entry.retransmissions)),
            *self._row("corrupted packets dropped", _corrupted),
            *self._row("peer fetches", lambda entry: integer(entry.peer_fetches)),
            *self._row("recoveries", _recoveries),
            *self._row("longest stall", lambda entry: f"{entry.longest_stall_s:.1f} s"),
            *self._row("replicas bit-identical", identical),
            *self._row("gradients conserved", _conserved),
        ]

    def _row(self, label: str, cell: Callable[[TrialSummary], str], *, shown: bool = True) -> list[list[str]]:
        """Return a row with a cell for each trial; no row if it is not shown."""
        return [[label, *map(cell, self.trials)]] if shown else []

    def _any(self, name: str) -> bool:
        return any(getattr(entry, name) for entry in self.trials)

    def _target(self) -> list[list[str]]:
        """Return the rows about the target, if there is one."""
        if self.metric is None:
            return []
        compared, alone = len(self.trials) > 1, self.alone is not None
        return [
            *self._row(f"time to {self.metric.goal}", time_to_target),
            *self._row("baseline / this", lambda entry: ratio(self.against(entry)), shown=compared),
            *self._row("one worker alone / this", lambda entry: ratio(self.against_alone(entry)), shown=alone),
            *self._row("iterations to target", lambda entry: integer(entry.iterations_to_target)),
        ]

    def logged_rows(self) -> list[list[str]]:
        """Return a row for each number that a script logged in any trial."""
        names = dict.fromkeys(name for entry in self.trials for name in entry.logged)
        return [[f"{name}{LOGGED}", *(significant(entry.logged.get(name)) for entry in self.trials)] for name in names]

    def _shares(self) -> list[list[str]]:
        """Return rows about the gradients of each worker, if there is a ledger."""
        if not any(any(entry.share_by_worker) for entry in self.trials):
            return []
        discarded = any(any(entry.discarded_by_worker) for entry in self.trials)
        return [
            *self._row("share of the sums", lambda entry: percentages(entry.share_by_worker)),
            *self._row("age when contributed", _ages),
            *self._row("discarded for age", lambda entry: weights(entry.discarded_by_worker), shown=discarded),
            *self._row("pending in the end", _pending),
            *self._row("STARVED", lambda entry: entry.starved or "none", shown=self._any("starved")),
        ]

    def headings(self) -> list[str]:
        """Return the table's first row: the trials' names, with marks for the baseline and for
        trials that did not end."""
        return [f"{entry.name}{self._mark(entry)}" for entry in self.trials]

    def _mark(self, entry: TrialSummary) -> str:
        if entry.early_end:
            return " (did not end)"
        return " (baseline)" if entry is self.baseline else ""

    def table(self, heading: str = "") -> PlainTable:
        return PlainTable([heading, *self.headings()], self.rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """All jobs of a run."""

    jobs: tuple[Summary, ...]
    provenance: Provenance | None = None
    """The versions, machine and command of the run."""
    load: str = ""
    """A remark about other processes that used the cores when the run began, or while the costs of a simulation were
    measured; empty: none did."""

    @property
    def failures(self) -> list[str]:
        """Every reason why the run failed; if there are several jobs, a reason names its job."""
        if len(self.jobs) == 1:
            return self.jobs[0].failures
        return [f"job {job.job}: {reason}" for job in self.jobs for reason in job.failures]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON: the document of a single job, or a document with all jobs."""
        provenance = {"provenance": msgspec.to_builtins(self.provenance)} if self.provenance else {}
        if len(self.jobs) == 1:
            return self.jobs[0].to_dict() | provenance
        documents = [job.to_dict() for job in self.jobs]
        ok = all(job.ok for job in self.jobs)
        return {"ok": ok, "failures": self.failures, "jobs": documents, **provenance}

    @property
    def notes(self) -> list[str]:
        """The warnings of all jobs, and warnings about a loaded machine and an unknown commit."""
        unknown = self.provenance.notes if self.provenance else []
        return [*(note for job in self.jobs for note in job.notes), *([self.load] if self.load else []), *unknown]

    def parts(self) -> list[PlainTable]:
        """Return the tables for the terminal: one for each job with a finished iteration."""
        alone = len(self.jobs) == 1
        return [job.table("" if alone else f"job {job.job}") for job in self.jobs if job.trials]


def time_to_target(entry: TrialSummary) -> str:
    """Return when a worker first had the target, as text."""
    return "diverged" if entry.diverged else seconds(entry.time_to_target_s)


def identical(entry: TrialSummary) -> str:
    """Return whether all replicas had the same bits, as text."""
    return "NO" if entry.identity_error else "yes"


def conserved(entry: TrialSummary) -> str:
    """Return whether every gradient of a trial with ledgers is accounted for, as text."""
    if entry.conservation_error:
        return "NO"
    return "as far as known" if entry.conservation_unchecked else "exactly"


def _changes(entry: TrialSummary) -> str:
    return "\n".join(map(str, entry.interventions)) or "-"


def _first_and_last_rule(entry: TrialSummary) -> str:
    if not entry.in_force:
        return "-"
    first, *others = entry.in_force
    between = [f"{len(others)} changes"] if len(others) > 1 else []
    return ", ".join([f"{first}", *between, *(f"{last} ({last.iteration})" for last in others[-1:])])


def _corrupted(entry: TrialSummary) -> str:
    by_workers, by_switch = entry.checksum_errors, entry.switch_checksum_errors
    if not by_workers and not by_switch:
        return "-" if by_workers is None else "none"
    return f"{integer(by_workers)} by workers, {integer(by_switch)} by the switch"


def _recoveries(entry: TrialSummary) -> str:
    numbers = ((entry.restarts, "restart"), (entry.rejoins, "rejoin"), (entry.regroups, "regroup"))
    return ", ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in numbers if count) or "none"


def _ages(entry: TrialSummary) -> str:
    """Return each worker's mean age, in iterations, and the largest age."""
    return f"{each(entry.age_by_worker, '{:.1f}'.format, separator='/')}, most {entry.age_most}"


def _pending(entry: TrialSummary) -> str:
    """Return the pending weight by worker, and for how many iterations the oldest pending gradient has been late."""
    if not any(entry.waiting_by_worker):
        return "none"
    pending = {rank: weight for rank, weight in enumerate(entry.waiting_by_worker) if weight}
    if len(pending) > FEW:
        return f"{sum(pending.values()):.2f} of {name_workers(pending)}; late for {entry.late_for}"
    return f"{', '.join(f'{rank}: {weight:.2f}' for rank, weight in pending.items())}; late for {entry.late_for}"


def _conserved(entry: TrialSummary) -> str:
    if not entry.ledger:
        return "not applicable"
    pending = any(entry.waiting_by_worker) and not entry.conservation_error
    return f"{conserved(entry)}, {sum(entry.waiting_by_worker):.2f} pending" if pending else conserved(entry)
