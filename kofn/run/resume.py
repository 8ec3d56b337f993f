"""`kofn run --resume FOLDER`: continue an interrupted run, from the newest checkpoint of its unfinished trial.

Trials that had ended stay.  The unfinished trial goes back to its checkpoint: lines about later iterations are removed
from the trial's files, because those iterations are computed again.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from kofn.run.jobs import plan_jobs
from kofn.run.lab.lab_file import Lab
from kofn.run.plan import RunPlan
from kofn.run.state import running
from kofn_common.config.errors import ConfigError
from kofn_common.results.event_log import LoggedEvent, read_event_log
from kofn_common.results.files import write_synced
from kofn_common.results.folder import RunFolder, TrialFolder, point_latest
from kofn_common.results.ranks import name_workers
from kofn_host.training import CheckpointFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The point at which a job's trial continues: after the checkpoint's `iteration`; 0: from the beginning.

    `done` are the events that had happened by then.  `again` counts the iterations that all workers together compute
    twice.  `lost` are the workers without a ledger in the checkpoint.
    """

    iteration: int
    done: Sequence[LoggedEvent]
    again: int
    lost: tuple[int, ...]

    @property
    def words(self) -> str:
        """The repeated and lost work, in words."""
        parts = [f"{self.again} iterations of workers computed again"]
        if self.lost:
            parts.append(f"pending gradients of {name_workers(self.lost)} lost")
        return "; ".join(parts)


def plan_resumed(path: Path, *, settings: Sequence[str], lab: Lab | None = None, as_json: bool, quiet: bool) -> RunPlan:
    """Return the plan of an interrupted run; ConfigError if there is nothing to resume.

    The run continues on this machine, or on those of a laboratory. `settings` may give another
    job.workers, if no trial has ended.
    """
    folder, record = RunFolder.open(path), RunFolder.open(path).record()
    if record.finished == len(record.trials):
        raise ConfigError(f"{path} has ended: kofn report shows its results")
    if (run := running()) is not None and Path(run.folder) == path.resolve():
        raise ConfigError(f"{path} is still running (pid {run.pid}): kofn stop ends it")
    foreign = [setting for setting in settings if not setting.startswith("job.workers=")]
    if foreign or (settings and record.finished):
        what = foreign[0] if foreign else f"{settings[0]} after a trial has ended"
        raise ConfigError(f"--resume takes --set job.workers=N, before the first trial has ended, got {what}")
    jobs = plan_jobs([job.effective for job in folder.jobs], target=None, driver=None, objectives=(), settings=settings)
    return RunPlan(jobs=jobs, folder=path, as_json=as_json, quiet=quiet, check=False, resume=True, lab=lab)


def reopen(plan: RunPlan, topology: str) -> RunFolder:
    """Return the run's folder, with the unfinished trial as it was at its checkpoint."""
    folder = RunFolder.open(plan.folder)
    folder.write_effective(plan.configs)
    folder.topology.write_text(topology)
    folder.update_record(ended="", jobs=tuple((config.job.id, config.job.workers) for config in plan.configs))
    point_latest(plan.folder)
    return folder


def go_back(entry: TrialFolder) -> Resumed:
    """Cut a job's trial back to its checkpoint; return the point at which the trial continues."""
    checkpoints = CheckpointFolder(entry.checkpoints)
    checkpoint = checkpoints.latest()
    iteration = 0 if checkpoint is None else checkpoint.iteration
    checkpoints.go_back(iteration)
    again, last_s, began = 0, 0.0, set[int]()
    for path in entry.path.glob("worker-*"):
        rank = path.stem.removeprefix("worker-")
        if path.suffix != ".jsonl" or not rank.isdecimal():
            path.unlink()  # a ledger, or the sums of a worker that had ended
            continue
        kept, dropped = _filter(path, _IterationLine, lambda line: line.iteration <= iteration)
        again += sum(line.computed for line in dropped)
        last_s = max([last_s, *(line.time for line in kept)])
        began |= {int(rank)} if kept else set()
    for path in (entry.decisions, entry.status, entry.samples):
        _filter(path, _Line, lambda line: line.time <= last_s)
    _filter(entry.events, LoggedEvent, lambda line: line.iteration <= iteration)
    lost = () if checkpoint is None else tuple(sorted(began.intersection(checkpoint.manifest.missing)))
    done = [event for event in read_event_log(entry.events) if not event.missed]
    return Resumed(iteration=iteration, done=done, again=again, lost=lost)


class _Line(msgspec.Struct, frozen=True):
    """The time of a line."""

    time: float


class _IterationLine(msgspec.Struct, frozen=True):
    """A line about one iteration of a worker."""

    time: float
    iteration: int
    computed: bool = False


T = TypeVar("T", _Line, _IterationLine, LoggedEvent)


def _filter(path: Path, kind: type[T], wanted: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Keep the wanted lines of a JSON lines file; return the kept lines and the removed lines, without damaged lines
    and lines of another kind."""
    lines, kept, dropped = list[bytes](), list[T](), list[T]()
    if not path.exists():
        return kept, dropped
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):  # a line that the crash has torn, or a worker's summary
            found = msgspec.json.decode(line, type=kind)
            if wanted(found):
                lines.append(line + b"\n")
            (kept if wanted(found) else dropped).append(found)
    write_synced(path, b"".join(lines))
    return kept, dropped
