"""The layers of schedule.toml, its columns, and its claims about the model of the pipeline."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from statistics import median

import pandas as pd

from kofn.experiments.claims import Verdict
from kofn.experiments.experiment_file import Point
from kofn.experiments.reader import Experiment, FinishedTrial
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import Iteration, WorkerMetrics
from kofn_host.schedule import Layer, LayerTimes, LinkModel, PassSchedule, bound_s, iteration_s
from kofn_host.training import JobCoding
from kofn_host.workload import LayeredWorkload, load_workload

COMPUTE_MS = 300.0
"""The time of one iteration's computation, without waiting."""

MODELS = {
    "equal": ([1.0] * 8, [1.0] * 8),
    "vgg": ([4, 4, 3, 3, 2, 2, 1, 0.5], [0.1, 0.2, 0.4, 0.8, 1, 1, 6, 3]),
    "transformer": ([0.2, *[1.0] * 8, 0.5], [4, *[1.0] * 8, 1]),
    "mlp": ([0.44, 0.55, 0.01], [0.44, 0.55, 0.01]),
}
"""The layers' computation and their parameters, in relative units."""

SETTLED = 30
"""The number of iterations, at the end, that are measured."""

PREDICTED = 0.10
"""The permitted error of the model of the pipeline."""


def with_layers(points: Sequence[Point]) -> list[Point]:
    """Return the points with layers of so many elements that their transfer takes the axis' multiple of the
    computation; the model `real` has its own."""
    own = [point for point in points if point.axes["model"] not in MODELS and point.axes["transfer"] == "as it is"]
    ours = [point for point in points if point.axes["model"] in MODELS and point.axes["transfer"] != "as it is"]
    return [*(replace(point, document={**point.document, "layer": layers(point)}) for point in ours), *own]


def layers(point: Point) -> list[dict[str, float]]:
    """Return the [[layer]] tables of a point."""
    computation, parameters = MODELS[str(point.axes["model"])]
    placeholder = replace(point, document={**point.document, "layer": [{"elements": 1}]})
    elements = float(point.axes["transfer"]) * COMPUTE_MS / 1000 * link_of(placeholder.config()).rate
    unit_ms = COMPUTE_MS / (3 * sum(computation) - computation[0])
    return [
        {"elements": max(1, round(elements * share / sum(parameters)))}
        | dict.fromkeys(("forward_ms", "error_ms", "weight_ms"), unit_ms * work)
        for work, share in zip(computation, parameters, strict=True)
    ]


def link_of(config: Config) -> LinkModel:
    """Return a configuration's link for the model of the pipeline."""
    layout = JobCoding.of(config.job, config.compress, 1).layout
    return LinkModel.of(config.pace_mbps(), layout, config.job.window)


def columns(trial: FinishedTrial) -> dict[str, object]:
    """Return times with the final schedule, and the schedule.

    `iteration_s` is the slowest worker's median over the last iterations. `bound_s` is a lower bound for every
    schedule, and `predicted_s` is the prediction of the pipeline's model; both use the measured times of the passes.
    """
    metrics, workload, link = trial.metrics(), load_workload(trial.config, 0), link_of(trial.config)
    assert isinstance(workload, LayeredWorkload)
    layers = workload.model.layers
    in_force = [line.schedule for line in metrics[0].iterations if line.schedule]
    changes = [at for at in range(1, len(in_force)) if in_force[at] != in_force[at - 1]]
    times = _measured(layers, metrics)
    measured_s = max(median(_times(worker)) for worker in metrics)
    least_s = bound_s(layers, times, replace(link, latency_s=0.0))
    predicted_s = iteration_s(layers, times, PassSchedule.parse(in_force[-1]), link)
    return {
        "transfer_of_computation": link.transfer_s(layers[-1].end) / times.compute_s,
        "iteration_s": measured_s,
        "bound_s": least_s,
        "predicted_s": predicted_s,
        "of_bound": measured_s / least_s,
        "of_prediction": measured_s / predicted_s,
        "schedule": in_force[-1],
        "searched": changes[-1] if changes else 0,
    }


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


def as_predicted(experiment: Experiment) -> Iterator[Verdict]:
    """Compare measured times with the predictions of the pipeline's model."""
    for world, times in _worlds(experiment):
        off = times["iteration_s"] / times["predicted_s"]
        worst = max(off.index, key=lambda name: abs(math.log(off[name])))
        yield Verdict(
            claim=f"iterations take what the model says, within {PREDICTED:.0%} ({world})",
            holds=all(abs(off - 1) <= PREDICTED),
            numbers=f"{off[worst]:.2f} times as long with {worst}",
        )


def ranked_as_predicted(experiment: Experiment) -> Iterator[Verdict]:
    """Check that the model ranks two schedules rightly if their times differ by more than the model's permitted
    error."""
    for world, times in _worlds(experiment):
        took, predicted = times["iteration_s"], times["predicted_s"]
        pairs = [(a, b) for a, b in permutations(times.index, 2) if took[a] * (1 + PREDICTED) < took[b]]
        wrong = [f"{faster} before {slower}" for faster, slower in pairs if predicted[faster] >= predicted[slower]]
        yield Verdict(
            claim=f"the model ranks schedules that differ by more than {PREDICTED:.0%} ({world})",
            holds=not wrong,
            numbers=f"{len(pairs) - len(wrong)} of {len(pairs)} pairs{': not ' + ', '.join(wrong) if wrong else ''}",
        )


def _worlds(experiment: Experiment) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the models of accelerators, with each schedule's medians over the seeds."""
    where = {"model": [*MODELS]}
    for world, rows in experiment.worlds(experiment.rows(where)) if experiment.has(where) else ():
        name = ", ".join(f"{axis} = {value}" for axis, value in world.items())
        yield name, rows.groupby("contender", sort=False)[["iteration_s", "predicted_s"]].median()


def schedules(experiment: Experiment) -> pd.DataFrame:
    """Return the final schedules of the first seed: family, threshold and number of front layers."""
    rows = experiment.rows({"seed": 1})
    found = [PassSchedule.parse(text) for text in rows["schedule"]]
    return rows[experiment.by].assign(
        family=[each.name for each in found],
        threshold=[f"{each.threshold * 4 / 1024:,.4g} KiB" for each in found],
        front=[str(each.front) if each.family.has_front else "-" for each in found],
    )
