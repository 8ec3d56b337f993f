"""What the table of trials has of a comparison.

Times are those of iterations and workers, the first iteration left out: it finds cold caches and unknown links.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from kofn.experiments.compare.points import Point
from kofn.experiments.trials import FinishedTrial, Row
from kofn.report.summarise import first_finishes
from kofn.report.summary import TrialSummary
from kofn.results.worker_metrics import TIME_PARTS, Iteration, WorkerMetrics

REDUCE = TIME_PARTS[1:-1]
"""Those of PARTS that an all-reduce consists of."""

LINKS = ("worker_up_bytes", "worker_down_bytes", "server_up_bytes", "server_down_bytes")
"""Bytes of Ethernet frames in an iteration, over a worker's link to the switch (the workers' mean) and from it; then
over the server's."""


def own_columns(point: Point, trial: FinishedTrial) -> Row:
    """What the table of trials has of this experiment; RunError if a worker's file is missing."""
    return {**point_columns(point), **time_columns(point, trial.metrics()), **link_columns(point, trial.summary)}


def point_columns(point: Point) -> Row:
    """What is compared; `limit_s`: the link's limit."""
    setting = point.setting
    return {
        "model": setting.model.name,
        "elements": setting.model.elements,
        "straggler": setting.straggler,
        "mbps": setting.mbps,
        "collective": point.contender.collective,
        "codec": point.contender.codec,
        "gradient_bytes": point.gradient_bytes,
        "limit_s": point.limit_s,
    }


def time_columns(point: Point, workers: Sequence[WorkerMetrics]) -> Row:
    """`iteration_s`: median time from one iteration's end to the next one's, at the first worker that is there;
    `reduce_s`: median time of an all-reduce, over all iterations of all workers; PARTS: where an iteration's time went,
    on average; `worker_iteration_s`: mean time of an iteration by the workers' clocks, which the parts add up to, less
    `parts_off` of it; `times_limit`: iteration time over the link's limit."""
    mean_s = _mean_s(workers)
    ends = [line.time for line in first_finishes(workers)]
    iteration_s = median(np.diff(ends).tolist() or [mean_s])
    parts_s = {part: math.fsum(_part(line, part) for line in _lines(workers)) / _steps(workers) for part in TIME_PARTS}
    times_limit = iteration_s / point.limit_s
    return {
        "iteration_s": iteration_s,
        "reduce_s": reduce_s(workers),
        **parts_s,
        "worker_iteration_s": mean_s,
        "parts_off": math.fsum(parts_s.values()) / mean_s - 1,
        "times_limit": times_limit,
        "goodput_share": 1 / times_limit,
    }


def reduce_s(workers: Sequence[WorkerMetrics]) -> float:
    """Median time of an all-reduce, over all iterations of all workers."""
    known = [line for line in _lines(workers) if line.compute_s is not None]
    return median([math.fsum(_part(line, part) for part in REDUCE) for line in known] or [_mean_s(workers)])


def link_columns(point: Point, summary: TrialSummary) -> Row:
    """LINKS; nothing without a link."""
    each = [[size / summary.iterations for size in both] for both in summary.link_bytes.values()]
    workers, server = each[: point.setting.workers], each[point.setting.workers :]
    means = [fmean(link[way] for link in links) if links else 0.0 for links in (workers, server) for way in (0, 1)]
    return dict(zip(LINKS, means, strict=True))


def _lines(workers: Sequence[WorkerMetrics]) -> list[Iteration]:
    return [line for worker in workers for line in worker.iterations if line.iteration > 1]


def _part(line: Iteration, part: str) -> float:
    return getattr(line, part) or 0.0


def _steps(workers: Sequence[WorkerMetrics]) -> int:
    return max(sum(len(worker.iterations) - 1 for worker in workers), 1)


def _mean_s(workers: Sequence[WorkerMetrics]) -> float:
    """From the end of each worker's first iteration to that of its last, over the iterations between."""
    spans = [(worker.iterations[0].time, worker.iterations[-1].time) for worker in workers if worker.iterations]
    return math.fsum(end - begin for begin, end in spans) / _steps(workers)
