"""The duration of iterations with each family of schedules, by the model of the pipeline, without training."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from kofn.report.table import PlainTable
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.schedule import FAMILIES, LayerTimes, LinkModel, PassSchedule, bound_s, iteration_s
from kofn_host.schedule.search import Proposals
from kofn_host.training import JobCoding
from kofn_host.workload import LayeredWorkload, load_workload
from kofn_host.workload.layered import LayeredModel
from kofn_host.workload.workloads.accelerator import times_of

REPEATS = 5
"""The number of times that each pass is timed; the median is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSchedule:
    """A schedule with its times in seconds. It is the schedule that [schedule] names if `configured` is true, else the
    best schedule of its family."""

    schedule: PassSchedule
    iteration_s: float
    bound_s: float
    configured: bool

    def to_dict(self) -> dict[str, Any]:
        schedule = self.schedule
        named = {"family": schedule.name, "threshold": schedule.threshold, "front": schedule.front}
        return named | {"iteration_s": self.iteration_s, "bound_s": self.bound_s, "configured": self.configured}


def simulate_schedules(config: Config) -> list[SimulatedSchedule]:
    """Return the configured schedule, then the best schedule of each family, with k = n and without stragglers. Raise
    ConfigError for a workload without layers."""
    workload = load_workload(config, 0)
    if not isinstance(workload, LayeredWorkload):
        raise ConfigError(
            f"model.workload must derive from LayeredWorkload with schedule.family = {config.schedule.family!r}, got"
            f" {config.model.workload_name!r}"
        )
    section, layers = config.schedule, workload.model.layers
    link = LinkModel.of(config.pace_mbps(), JobCoding.of(config.job, config.compress, 1).layout, config.job.window)
    times = _times(config, workload)
    bound = bound_s(layers, times, link)
    given = PassSchedule(section.family or "", section.threshold, section.front)
    known = Proposals(layers, PassSchedule("priority", 1), link).candidates()
    found = {schedule: iteration_s(layers, times, schedule, link) for schedule in known}
    rows = [] if section.searches else [(given, iteration_s(layers, times, given, link), True)]
    for family in FAMILIES:
        best = min(
            (schedule for schedule in known if schedule.name == family),
            key=lambda schedule: (found[schedule], schedule),
        )
        rows.append((best, found[best], False))
    return [
        SimulatedSchedule(schedule=schedule, iteration_s=took_s, bound_s=bound, configured=configured)
        for schedule, took_s, configured in rows
    ]


def table(results: list[SimulatedSchedule]) -> PlainTable:
    """Return a table of schedules. The table has the time of an iteration in milliseconds, and this time divided by the
    bound ("x bound"); thresholds are in KiB of float32."""
    headings = ["family", "threshold", "front", "iteration", "x bound", ""]
    return PlainTable(headings, list(map(_row, results)), texts=("family", ""))


def _row(result: SimulatedSchedule) -> list[str]:
    return [
        result.schedule.name,
        f"{result.schedule.threshold * 4 / 1024:,.4g} KiB",
        str(result.schedule.front) if result.schedule.family.has_front else "-",
        f"{1e3 * result.iteration_s:.1f} ms",
        f"{result.iteration_s / result.bound_s:.2f}",
        "configured" if result.configured else "best of its family",
    ]


def _times(config: Config, workload: LayeredWorkload) -> LayerTimes:
    """Return the times that [[layer]] gives for an accelerator. Without [[layer]] time the passes on this machine, and
    stretch all of them by one factor if their sum is less than model.compute_ms."""
    if config.layer:
        return times_of(config.layer)
    runs = [dict(_timed(workload)) for _ in range(REPEATS)]
    layers = range(len(workload.model.layers))
    times = LayerTimes(
        *(
            [median(run.get((kind, at), 0.0) for run in runs) for at in layers]
            for kind in ("forward", "error", "weight")
        )
    )
    longer = max(1.0, config.model.compute_ms / 1000 / times.compute_s)
    return LayerTimes(*([longer * pass_s for pass_s in kind] for kind in (times.forward, times.error, times.weight)))


def _timed(workload: LayeredWorkload) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield the passes of one gradient, each with its time in seconds, in the order of a training without a
    schedule."""
    model: LayeredModel = workload.model
    workload.begin(1)
    layers = range(len(model.layers))
    passes = [("forward", at) for at in layers]
    passes += [("weight", at) if kind else ("error", at) for at in reversed(layers) for kind in (1, 0) if kind or at]
    for kind, at in passes:
        if (kind, at) == ("weight", len(layers) - 1):
            model.loss()
        began_s = time.perf_counter()
        getattr(model, kind)(at)
        yield (kind, at), time.perf_counter() - began_s
