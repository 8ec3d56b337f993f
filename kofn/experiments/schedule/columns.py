"""The columns of `kofn experiment schedule` in the table of trials: times with the final schedule."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from kofn.experiments.schedule.contenders import ALL, link_of
from kofn.experiments.trials import FinishedTrial, Row
from kofn_common.results.worker_metrics import Iteration, WorkerMetrics
from kofn_host.schedule import Layer, LayerTimes, PassSchedule, bound_s, iteration_s
from kofn_host.workload import LayeredWorkload, load_workload

SETTLED = 30
"""The number of iterations, at the end, that are measured."""


def own_columns(trial: FinishedTrial) -> Row:
    """Return this experiment's columns.

    `iteration_s` is the slowest worker's median over the last iterations. `bound_s` is a lower bound for every
    schedule, and `predicted_s` is the prediction of the pipeline's model; both use the measured times of the passes.
    """
    contender, metrics, layers = ALL[trial.cell.scenario.name], trial.metrics(), _layers(trial)
    in_force = [line.schedule for line in metrics[0].iterations if line.schedule]
    changes = [at for at in range(1, len(in_force)) if in_force[at] != in_force[at - 1]]
    times, link = _measured(layers, metrics), link_of(trial.config)
    return {
        "model": contender.model,
        "transfer": link.transfer_s(layers[-1].end) / times.compute_s,
        "contender": contender.schedule,
        "iteration_s": max(median(_times(worker)) for worker in metrics),
        "bound_s": bound_s(layers, times, replace(link, latency_s=0.0)),
        "predicted_s": iteration_s(layers, times, PassSchedule.parse(in_force[-1]), link),
        "schedule": in_force[-1],
        "searched": changes[-1] if changes else 0,
    }


def _layers(trial: FinishedTrial) -> Sequence[Layer]:
    workload = load_workload(trial.config, 0)
    assert isinstance(workload, LayeredWorkload)
    return workload.model.layers


def _last(worker: WorkerMetrics) -> list[Iteration]:
    return [line for line in worker.iterations if line.iteration_s is not None][-SETTLED:]


def _times(worker: WorkerMetrics) -> list[float]:
    """Return the times from an iteration's end to the next iteration's end."""
    times = [line.time for line in _last(worker)]
    return [after - before for before, after in pairwise(times)]


def _measured(layers: Sequence[Layer], metrics: Sequence[WorkerMetrics]) -> LayerTimes:
    """Return the times of each layer's passes: medians over iterations and workers."""
    took = defaultdict[tuple[str, str], list[float]](list)
    for entry in (entry for worker in metrics for line in _last(worker) for entry in line.timeline or ()):
        took[entry.what, entry.layer].append(entry.end_s - entry.begin_s)
    return LayerTimes(
        *([median(took[what, layer.name] or [0.0]) for layer in layers] for what in ("forward", "error", "weight"))
    )
