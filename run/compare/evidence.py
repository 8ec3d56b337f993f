"""What a comparison's runs show: figures of each run, and of each contender over the seeds.

Times are those of iterations and workers, the first iteration left out: it finds cold caches and unknown links.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Self

import numpy as np

from run.compare.points import Contender, Point, Setting
from run.folder import PassFolder
from run.matrix import Result
from run.metrics import PARTS, Iteration, WorkerMetrics, read_pass
from run.spread import Spread
from run.summarise import first_finishes
from run.summary import PassSummary

REDUCE = PARTS[1:-1]
"""Those of PARTS that an all-reduce consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run; times in seconds, bytes those of Ethernet frames in an iteration."""

    point: Point
    seed: int
    source: Path
    """Its configuration: `kofn run` repeats it."""
    folder: PassFolder
    target_accuracy: float
    summary: PassSummary
    iteration_s: float
    """Median time from one iteration's end to the next one's, at the first worker that is there."""
    reduce_s: float
    """Median time of an all-reduce, over all iterations of all workers."""
    parts_s: dict[str, float]
    """Where an iteration's time went, by PARTS: on average over all iterations of all workers."""
    mean_s: float
    """Mean time of an iteration over all workers, by their clocks: what the parts add up to."""
    up_bytes: float
    """Of a worker's link to the switch, the workers' mean; then from it, and the same of the server's link."""
    down_bytes: float
    server_up_bytes: float
    server_down_bytes: float

    @property
    def added_up(self) -> float:
        """The parts' sum over the measured time, less one."""
        return math.fsum(self.parts_s.values()) / self.mean_s - 1

    @property
    def over_limit(self) -> float:
        """Iteration time over the link's limit."""
        return self.iteration_s / self.point.limit_s

    @property
    def time_s(self) -> float:
        """To the target accuracy; infinite where it was not reached."""
        return math.inf if self.summary.time_to_target_s is None else self.summary.time_to_target_s

    @property
    def iterations_to_target(self) -> float:
        """Infinite where it was not reached."""
        return math.inf if self.summary.iterations_to_target is None else self.summary.iterations_to_target

    def problems(self) -> list[str]:
        """Why the run is not as it should be; a fixed k that misses the target is a finding."""
        reasons = list(self.summary.broken)
        trained = self.point.setting.model.replay is None
        if trained and math.isinf(self.time_s) and self.point.contender.collective != "fixed":
            reasons.append(f"the target was not reached (best {self.summary.best_accuracy:.1%})")
        return [f"{self.point.name}, seed {self.seed}: {reason}" for reason in reasons]


def measured(point: Point, result: Result) -> Measured:
    """Of a run that is finished; RunError if a worker's file is missing."""
    (folder,), (summary,) = result.cell.job().passes, result.passes
    workers = read_pass(folder, point.setting.workers)
    lines = [line for worker in workers for line in worker.iterations if line.iteration > 1]
    ends = [line.time for line in first_finishes(workers)]
    mean_s = _mean_s(workers)
    steps = sum(len(worker.iterations) - 1 for worker in workers)
    links = {name: tuple(size / summary.iterations for size in both) for name, both in summary.link_bytes.items()}
    up, down = _links(list(links.values())[: point.setting.workers])
    server_up, server_down = _links(list(links.values())[point.setting.workers :])
    return Measured(
        point=point,
        seed=result.cell.seed,
        source=result.cell.source,
        folder=folder,
        target_accuracy=result.cell.config.run.target_accuracy,
        summary=summary,
        iteration_s=median(np.diff(ends).tolist() or [mean_s]),
        reduce_s=median([_sum(line, REDUCE) for line in lines if line.compute_s is not None] or [mean_s]),
        parts_s={part: math.fsum(_part(line, part) for line in lines) / max(steps, 1) for part in PARTS},
        mean_s=mean_s,
        up_bytes=up,
        down_bytes=down,
        server_up_bytes=server_up,
        server_down_bytes=server_down,
    )


def _mean_s(workers: Sequence[WorkerMetrics]) -> float:
    """From the end of each worker's first iteration to that of its last, over the iterations between."""
    spans = [(worker.iterations[0].time, worker.iterations[-1].time) for worker in workers if worker.iterations]
    steps = sum(len(worker.iterations) - 1 for worker in workers)
    return math.fsum(end - begin for begin, end in spans) / max(steps, 1)


def _part(line: Iteration, part: str) -> float:
    return getattr(line, part) or 0.0


def _sum(line: Iteration, parts: Iterable[str]) -> float:
    return math.fsum(_part(line, part) for part in parts)


def _links(several: Sequence[tuple[float, ...]]) -> tuple[float, float]:
    """Mean bytes to the switch and from it; nothing without a link."""
    if not several:
        return 0.0, 0.0
    up, down = zip(*several, strict=True)
    return fmean(up), fmean(down)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A contender in a setting, over its seeds."""

    runs: tuple[Measured, ...]

    @classmethod
    def of(cls, runs: Sequence[Measured]) -> Self:
        """Of one run or more, of the same point."""
        return cls(runs=tuple(runs))

    @property
    def point(self) -> Point:
        """Of all runs."""
        return self.runs[0].point

    @property
    def contender(self) -> Contender:
        """Of all runs."""
        return self.point.contender

    @property
    def setting(self) -> Setting:
        """Of all runs."""
        return self.point.setting

    @property
    def trained(self) -> bool:
        """Whether there is an accuracy."""
        return self.setting.model.replay is None

    def spread(self, figure: Callable[[Measured], float]) -> Spread:
        """Of a figure, over the seeds."""
        return Spread.of([figure(run) for run in self.runs])

    def parts_s(self) -> dict[str, float]:
        """Medians over the seeds."""
        return {part: median(run.parts_s[part] for run in self.runs) for part in PARTS}

    def times_faster(self, other: "Row", figure: Callable[[Measured], float]) -> Spread | None:
        """The other's figure over this one's, seed by seed; 0 where this one never gets there, None without pairs."""
        theirs = {run.seed: figure(run) for run in other.runs}
        pairs = [(figure(run), theirs[run.seed]) for run in self.runs if run.seed in theirs]
        return Spread.of([0.0 if math.isinf(mine) else their / mine for mine, their in pairs]) if pairs else None


def by_setting(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """By the settings' names, as they come."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.setting.name, []).append(row)
    return found


def iteration_s(run: Measured) -> float:
    """For `Row.spread`."""
    return run.iteration_s


def reduce_s(run: Measured) -> float:
    """For `Row.spread`."""
    return run.reduce_s


LINKS: tuple[Callable[[Measured], float], ...] = (
    lambda run: run.up_bytes,
    lambda run: run.down_bytes,
    lambda run: run.server_up_bytes,
    lambda run: run.server_down_bytes,
)
"""For `Row.spread`: bytes of an iteration over a worker's link to the switch, from it, and over the server's."""


def time_s(run: Measured) -> float:
    """For `Row.spread`."""
    return run.time_s
