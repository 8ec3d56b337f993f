"""--record-stragglers: the blocking of each worker in each iteration of a trial, as a trace for another run."""

from pathlib import Path

from rich.console import Console

from kofn.run.display import say
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import WorkerMetrics, read_trial
from kofn_host.workload import write_trace


def check_record(path: Path, *, jobs: int = 1, seeds: int = 1) -> None:
    """Raise ConfigError, before any process starts, if the file cannot be written or there are several runs for it."""
    if jobs > 1:
        raise ConfigError(f"--record-stragglers {path} needs one configuration, got {jobs}")
    if seeds > 1:
        raise ConfigError(f"--record-stragglers {path} needs one seed, got run.seeds = {seeds}")
    if path.exists():
        raise ConfigError(f"--record-stragglers {path} is there: choose another name, results are never overwritten")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--record-stragglers {path}: {path.absolute().parent} is no folder")


def record_stragglers(folder: RunFolder, path: Path | None, console: Console) -> None:
    """Write the measured blocking of the last trial's workers, if there is a path."""
    if path is None:
        return
    entry, ((_, workers),) = folder.jobs[0].trials[-1], folder.record().jobs
    metrics = read_trial(entry, workers)
    last = max(line.iteration for worker in metrics for line in worker.iterations)
    write_trace(path, {key: time_s for worker in metrics for key, time_s in blocked(worker, last).items()})
    say(console, f"blocking of trial {entry.objective}: {path}")


def blocked(worker: WorkerMetrics, last: int) -> dict[tuple[int, int], float]:
    """Return a worker's blocking in seconds, by iteration up to `last` and rank.

    A worker that is still blocked over an earlier gradient computes no gradient for an iteration. The iteration gets
    the earlier gradient's time, because in another run the worker may begin a gradient then. There is no entry after
    the last computed iteration.
    """
    measured = {line.iteration: line.blocked_s for line in worker.iterations if line.blocked_s is not None}
    found, latest = {}, 0.0
    for iteration in range(1, min(last, max(measured, default=0)) + 1):
        latest = measured.get(iteration, latest)
        found[iteration, worker.rank] = latest
    return found
