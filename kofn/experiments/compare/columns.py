"""The columns of a comparison in the table of trials.

Times leave out the first iteration, which meets cold caches and unknown links.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from statistics import median

import numpy as np

from kofn.experiments.compare.points import Point
from kofn.experiments.trials import FinishedTrial, Row
from kofn.report.iteration_costs import LinkMeans, mean_parts_s, reduce_s, worker_iteration_s
from kofn.report.summarise import first_finishes
from kofn.report.summary import TrialSummary
from kofn_common.results.worker_metrics import TIME_PARTS, WorkerMetrics

LINKS = tuple(field.name for field in fields(LinkMeans))


def own_columns(point: Point, trial: FinishedTrial) -> Row:
    """Return this experiment's columns. Raise RunError if a worker's file is missing."""
    memory = {"memory_bytes": None if trial.summary.memory is None else trial.summary.memory.total}
    times, links = time_columns(point, trial.metrics()), link_columns(point, trial.summary)
    return {**point_columns(point), **times, **links, **memory}


def point_columns(point: Point) -> Row:
    """Return the columns of the compared point; `limit_s` is the link's limit."""
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
    """Return columns of time.

    `iteration_s` is the median time from an iteration's end, at the first worker to finish, to the next iteration's
    end. `reduce_s` is the median time of an all-reduce, over all iterations of all workers. TIME_PARTS are the mean
    parts of an iteration's time. `worker_iteration_s` is the mean time of an iteration by the workers' clocks; the
    parts add up to this time, with the relative error `parts_off`. `times_limit` is `iteration_s` divided by the link's
    limit.
    """
    mean_s = worker_iteration_s(workers)
    ends = [line.time for line in first_finishes(workers)]
    iteration_s = median(np.diff(ends).tolist() or [mean_s])
    parts_s = mean_parts_s(workers) or dict.fromkeys(TIME_PARTS, 0.0)
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


def link_columns(point: Point, summary: TrialSummary) -> Row:
    """Return the columns LINKS; zeros if links were not counted."""
    return asdict(LinkMeans.of(summary.link_bytes, point.setting.workers, summary.iterations))
