"""Computes a job's summary from the files of its trials: metrics, ledger, statuses, events."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from kofn.report.checks import Conservation, conservation, identity
from kofn.report.compressed import Compressed
from kofn.report.in_force import in_force
from kofn.report.interventions import read_interventions
from kofn.report.iteration_costs import mean_parts_s
from kofn.report.outages import Outages
from kofn.report.prediction import predicted_iteration_s
from kofn.report.recoveries import read_lines, recoveries
from kofn.report.shares import WorkerShares
from kofn.report.summary import Alone, RunSummary, Summary, TrialSummary
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_common.results.event_log import read_event_log
from kofn_common.results.folder import JobFolder, RunFolder, TrialFolder
from kofn_common.results.link_bytes import read_links
from kofn_common.results.objective_notes import read_objective_notes
from kofn_common.results.worker_metrics import (
    CLOSED,
    Iteration,
    Totals,
    WorkerMetrics,
    last_logged,
    read_begun,
    read_trial,
    read_worker,
)
from kofn_host.training import DIVERGED
from kofn_host.workload import Metric, metric_of


def summarise_run(folder: RunFolder, configs: Sequence[Config], early_end: str) -> RunSummary:
    """Summarise every job with the trials so far. `early_end` is the reason if some trials did not end."""
    record = folder.record()
    finished = record.finished if early_end else len(record.trials)
    jobs = (
        summarise(job, config, finished=finished, early_end=early_end)
        for job, config in zip(folder.jobs, configs, strict=True)
    )
    return RunSummary(jobs=tuple(jobs), provenance=record.provenance, load=record.load)


def summarise(folder: JobFolder, config: Config, *, finished: int | None = None, early_end: str = "") -> Summary:
    """Read every trial's files and compute everything; ResultsError if a file is missing or damaged.

    `finished` is the number of trials that ended; the following trials may be incomplete.
    """
    count = len(folder.trials) if finished is None else finished
    read = [(entry, read_trial(entry, config.job.workers), "") for entry in folder.trials[:count]]
    begun = [(entry, read_begun(entry, config.job.workers), early_end) for entry in folder.trials[count:]]
    trials = tuple(
        summarise_trial(entry, workers, config, job=folder.id, early_end=reason)
        for entry, workers, reason in [*read, *begun]
        if workers
    )
    return Summary(
        job=folder.id,
        metric=metric_of(config),
        trials=trials,
        compresses=config.compress.compresses or (config.torch.script is not None and any(map(_sent_less, trials))),
        alone=_alone(folder.alone, metric_of(config)),
        early_end=early_end,
        not_run=tuple(entry.objective for entry, workers, _ in begun if not workers),
    )


def summarise_trial(
    folder: TrialFolder, workers: Sequence[WorkerMetrics], config: Config, *, job: int, early_end: str = ""
) -> TrialSummary:
    """Summarise one trial from its workers' lines and sums. `early_end` is the reason if the trial was ended early."""
    events = read_event_log(folder.events)
    outages = Outages.of(workers, events)
    workers = outages.cut(workers)
    lines = [line for worker in workers for line in worker.iterations]
    begin = training_start_s(workers)
    metric = metric_of(config)
    reached = min((line for line in lines if metric and metric.reached(line.accuracy)), key=_time, default=None)
    finished = first_finishes(workers)
    times = [line.time for line in finished]
    late = tuple(sum(line.late for line in worker.iterations) for worker in workers)
    collective = load_collective(config.job.collective)
    ledger = collective.ledger
    told = [worker.totals for worker in workers if worker.totals is not None]
    totals = told if len(told) == len(workers) else None
    packets = totals if collective.counts_packets else None
    statuses = read_lines(folder.status)
    recovered = recoveries(statuses, events)
    shares = WorkerShares.of(workers)
    conserved = _conserved(folder, workers, early_end) if ledger else Conservation()
    return TrialSummary(
        objective=folder.objective,
        time_to_target_s=None if reached is None else reached.time - begin,
        iterations_to_target=None if reached is None else reached.iteration,
        duration_s=max(map(_time, lines)) - begin,
        iterations=finished[-1].iteration,
        best_accuracy=None if metric is None else metric.best(line.accuracy for line in lines),
        owned_accuracy=finished[-1].owned_accuracy,
        median_iteration_s=float(np.median(np.diff([begin, *times]))),
        mean_iteration_s=(times[-1] - begin) / finished[-1].iteration,
        predicted_iteration_s=predicted_iteration_s(statuses),
        late_gradients=sum(late),
        late_by_worker=late,
        entered_by_worker=shares.entered,
        summed_by_worker=shares.summed,
        share_by_worker=shares.share,
        age_by_worker=shares.age,
        age_most=shares.age_most,
        waiting_by_worker=shares.waiting,
        late_for=shares.late_for,
        discarded_by_worker=shares.discarded,
        starved_by_worker=shares.starved,
        bytes_sent=_sum(totals, "bytes_sent"),
        bytes_received=_sum(totals, "bytes_received"),
        packets_sent=_sum(packets, "packets_sent"),
        packets_received=_sum(packets, "packets_received"),
        retransmissions=_sum(packets, "retransmissions"),
        in_force=in_force(statuses, folder.decisions),
        k_iterations=dict(sorted(Counter(line.k for line in finished).items())),
        restarts=recovered.restarts,
        rejoins=recovered.rejoins,
        regroups=recovered.regroups,
        longest_stall_s=float(np.max(np.diff([begin, *sorted(map(_time, lines))]))),
        checksum_errors=_sum(packets, "checksum_errors"),
        switch_checksum_errors=recovered.switch_checksum_errors,
        switch_counters=recovered.switch_counters,
        refused=recovered.refused,
        peer_fetches=_sum(packets, "peer_fetches"),
        outage_s=outages.total_s,
        resumed=tuple(entry.words for entry in events if entry.action == "resume"),
        missed_events=tuple(entry.words for entry in events if entry.missed),
        identity_error=identity(workers),
        conservation_error=conserved.error,
        conservation_unchecked=conserved.unchecked,
        compressed=Compressed.of(lines),
        collective=config.job.collective,
        ledger=ledger,
        times_s={part.removesuffix("_s"): time_s for part, time_s in mean_parts_s(workers).items()},
        link_bytes=read_links(folder.links),
        memory=max((entry.memory for entry in told if entry.memory), key=lambda memory: memory.total, default=None),
        interventions=read_interventions(folder, job),
        objective_faults=tuple(note.words for note in read_objective_notes(folder.decisions, job) if note.fault),
        logged=last_logged(
            {name: value for line in worker.logged for name, value in line.logged.items()} for worker in workers
        ),
        early_end=early_end,
        diverged=any(entry.reason == DIVERGED for entry in told),
    )


def _sum(totals: Sequence[Totals] | None, name: str) -> int | None:
    """Return a count of all workers together; None if the count is unknown."""
    return None if totals is None else sum(getattr(entry, name) for entry in totals)


def _alone(folder: TrialFolder, metric: Metric | None) -> Alone | None:
    """Return the training of one worker alone; None if run.alone did not ask for this training."""
    worker = read_worker(folder, 0)
    if not worker.iterations:
        return None
    begin = training_start_s([worker])
    reached = next((line for line in worker.iterations if metric and metric.reached(line.accuracy)), None)
    return Alone(
        time_to_target_s=None if reached is None else reached.time - begin,
        iterations=worker.iterations[-1].iteration,
        duration_s=worker.iterations[-1].time - begin,
    )


def _sent_less(trial: TrialSummary) -> bool:
    """Return whether fewer bytes were sent than float32 has; scripts may have their own
    codec (kofn_torch.zero)."""
    return trial.compressed is not None and trial.compressed.wire_ratio < 1


def _conserved(folder: TrialFolder, workers: Sequence[WorkerMetrics], early_end: str) -> Conservation:
    """Check the ledgers. Workers write their sums when they end, so a trial that was stopped earlier has none."""
    if early_end and not all(folder.sums(rank).exists() for rank in range(len(workers))):
        return Conservation(unchecked="the ledgers, because the trial did not end")
    return conservation(folder, len(workers), _left(workers))


def _left(workers: Sequence[WorkerMetrics]) -> dict[int, str]:
    """Return, by rank, the last iteration of each worker whose script closed its session early ("20 of 25")."""
    last = {worker.rank: worker.iterations[-1].iteration for worker in workers if worker.iterations}
    closed = {worker.rank for worker in workers if worker.totals is not None and worker.totals.reason == CLOSED}
    most = max(last.values(), default=0)
    return {rank: f"{end} of {most}" for rank, end in last.items() if rank in closed and end < most}


def training_start_s(workers: Sequence[WorkerMetrics]) -> float:
    """Return the Unix time at which the first worker began its first iteration."""
    starts = (line.started for worker in workers for line in worker.iterations)
    return min(started for started in starts if started is not None)


def first_finishes(workers: Sequence[WorkerMetrics]) -> list[Iteration]:
    """Return, for each iteration, the line of the replica that finished it first."""
    first: dict[int, Iteration] = {}
    for worker in workers:
        for line in worker.iterations:
            best = first.setdefault(line.iteration, line)
            if line.time < best.time:
                first[line.iteration] = line
    return [first[iteration] for iteration in sorted(first)]


def _time(line: Iteration) -> float:
    return line.time
