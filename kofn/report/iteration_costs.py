"""The costs of an iteration: the parts of a worker's time, and the bytes on the links; means over a whole trial."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Self

from kofn_common.results.worker_metrics import TIME_PARTS, Iteration, WorkerMetrics

REDUCE = TIME_PARTS[1:-1]
"""The parts of an all-reduce."""


def measured_lines(workers: Sequence[WorkerMetrics]) -> list[Iteration]:
    """Return all lines but those of the first iteration, which has cold caches and unknown links."""
    return [line for worker in workers for line in worker.iterations if line.iteration > 1]


def mean_parts_s(workers: Sequence[WorkerMetrics]) -> dict[str, float]:
    """Return the TIME_PARTS of an iteration, in seconds, which add up to worker_iteration_s(); empty if the workers do
    not report these parts."""
    lines = measured_lines(workers)
    if not any(line.compute_s is not None for line in lines):
        return {}
    return {part: math.fsum(part_s(line, part) for line in lines) / _steps(workers) for part in TIME_PARTS}


def worker_iteration_s(workers: Sequence[WorkerMetrics]) -> float:
    """Return the time from the end of each worker's first iteration to the end of its last iteration, divided by the
    number of iterations between."""
    spans = [(worker.iterations[0].time, worker.iterations[-1].time) for worker in workers if worker.iterations]
    return math.fsum(end - begin for begin, end in spans) / _steps(workers)


def reduce_s(workers: Sequence[WorkerMetrics]) -> float:
    """Return the median time of an all-reduce, over every worker's iterations after the first."""
    known = [line for line in measured_lines(workers) if line.computed and line.compute_s is not None]
    return median([math.fsum(part_s(line, part) for part in REDUCE) for line in known] or [worker_iteration_s(workers)])


def part_s(line: Iteration, part: str) -> float:
    return getattr(line, part) or 0.0


def _steps(workers: Sequence[WorkerMetrics]) -> int:
    return max(sum(max(len(worker.iterations) - 1, 0) for worker in workers), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeans:
    """Bytes of Ethernet frames on a link in an iteration. `worker` is the mean over the workers' links to the switch
    (up) and from the switch (down). `inner` is the parameter server's link, or the mean over the leaves' uplinks."""

    worker_up_bytes: float = 0.0
    worker_down_bytes: float = 0.0
    inner_up_bytes: float = 0.0
    inner_down_bytes: float = 0.0

    @classmethod
    def of(cls, link_bytes: Mapping[str, tuple[int, int]], workers: int, iterations: int) -> Self:
        """Return the means of a trial. `link_bytes` has the workers' links first, then the server's link or the
        uplinks. A mean over no link is 0."""
        means = [[size / iterations for size in both] for both in link_bytes.values()]
        up, down, inner_up, inner_down = (
            fmean(link[way] for link in links) if links else 0.0
            for links in (means[:workers], means[workers:])
            for way in (0, 1)
        )
        return cls(worker_up_bytes=up, worker_down_bytes=down, inner_up_bytes=inner_up, inner_down_bytes=inner_down)


LINKS = tuple(field.name for field in fields(LinkMeans))
"""The names of the fields of LinkMeans."""
