"""What the table of trials has of `kofn experiment schedule`: times by the schedule that was in force in the end."""

from itertools import pairwise
from statistics import median

from kofn.experiments.schedule.contenders import ALL, link_of
from kofn.experiments.trials import FinishedTrial, Row
from kofn.host.schedule.layers import Layer, LayerTimes
from kofn.host.schedule.pipeline import bound_s
from kofn.results.worker_metrics import Iteration, WorkerMetrics

SETTLED = 30
"""Iterations at the end that are measured."""


def own_columns(trial: FinishedTrial) -> Row:
    """`iteration_s`: median over the last iterations, of the slowest worker; `bound_s`: no schedule is faster."""
    contender, metrics = ALL[trial.cell.scenario.name], trial.metrics()
    in_force = [line.schedule for line in metrics[0].iterations if line.schedule]
    changes = [at for at in range(1, len(in_force)) if in_force[at] != in_force[at - 1]]
    return {
        "model": contender.model,
        "transfer": float(contender.ratio),
        "contender": contender.schedule,
        "iteration_s": max(median(_times(worker)) for worker in metrics),
        "bound_s": bound_s(_layers(trial), _measured(metrics), link_of(trial.config)),
        "schedule": in_force[-1] if in_force else None,
        "searched": changes[-1] if changes else 0,
    }


def _last(worker: WorkerMetrics) -> list[Iteration]:
    return [line for line in worker.iterations if line.iteration_s is not None][-SETTLED:]


def _times(worker: WorkerMetrics) -> list[float]:
    """From one iteration's end to the next one's."""
    times = [line.time for line in _last(worker)]
    return [after - before for before, after in pairwise(times)]


def _layers(trial: FinishedTrial) -> list[Layer]:
    begin, layers = 0, list[Layer]()
    for number, section in enumerate(trial.config.layer, 1):
        layers.append(Layer(str(number), begin, begin + section.elements))
        begin += section.elements
    return layers


def _measured(metrics: tuple[WorkerMetrics, ...]) -> LayerTimes:
    """Each layer's passes, medians over iterations and workers."""
    took: dict[tuple[str, str], list[float]] = {}
    for worker in metrics:
        for line in _last(worker):
            for entry in line.timeline or ():
                took.setdefault((entry.what, entry.layer), []).append(entry.end_s - entry.begin_s)
    layers = list(dict.fromkeys(layer for _, layer in took))
    layers.sort(key=int)
    return LayerTimes(
        *([median(took.get((what, layer), [0.0])) for layer in layers] for what in ("forward", "error", "weight"))
    )
