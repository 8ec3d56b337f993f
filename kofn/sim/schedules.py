"""The duration of iterations by each family of schedules, by the model of the pipeline, without training."""

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
"""Passes that are timed; their median is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSchedule:
    """Times in seconds; `configured`: the schedule of [schedule], else its family's best."""

    schedule: PassSchedule
    iteration_s: float
    bound_s: float
    configured: bool

    def to_dict(self) -> dict[str, Any]:
        one = self.schedule
        named = {"family": one.name, "threshold": one.threshold, "front": one.front}
        return named | {"iteration_s": self.iteration_s, "bound_s": self.bound_s, "configured": self.configured}


def simulate_schedules(config: Config) -> list[SimulatedSchedule]:
    """Return the configured schedule, then the best of each family; k = n, no stragglers. Raise ConfigError for a
    workload without layers."""
    workload = load_workload(config, 0)
    if not isinstance(workload, LayeredWorkload):
        raise ConfigError(
            f"schedule.family is {config.schedule.family!r}, model.workload {config.model.workload_name!r}: one derived"
            " from LayeredWorkload is needed"
        )
    section, layers = config.schedule, workload.model.layers
    link = LinkModel.of(config.pace_mbps(), JobCoding.of(config.job, config.compress, 1).layout, config.job.window)
    times = _times(config, workload)
    bound = bound_s(layers, times, link)
    given = PassSchedule(section.family or "", section.threshold, section.front)
    known = Proposals(layers, PassSchedule("priority", 1), link).candidates()
    found = {one: iteration_s(layers, times, one, link) for one in known}
    rows = [] if section.searches else [(given, iteration_s(layers, times, given, link), True)]
    for family in FAMILIES:
        best = min((one for one in known if one.name == family), key=lambda one: (found[one], one))
        rows.append((best, found[best], False))
    return [
        SimulatedSchedule(schedule=one, iteration_s=took_s, bound_s=bound, configured=configured)
        for one, took_s, configured in rows
    ]


def table(results: list[SimulatedSchedule]) -> PlainTable:
    """Return a table for people: milliseconds an iteration, and KiB of float32."""
    headings = ["family", "threshold", "front", "iteration", "x bound", ""]
    return PlainTable(headings, list(map(_row, results)), texts=("family", ""))


def _row(one: SimulatedSchedule) -> list[str]:
    return [
        one.schedule.name,
        f"{one.schedule.threshold * 4 / 1024:,.4g} KiB",
        str(one.schedule.front) if one.schedule.family.has_front else "-",
        f"{1e3 * one.iteration_s:.1f} ms",
        f"{one.iteration_s / one.bound_s:.2f}",
        "configured" if one.configured else "best of its family",
    ]


def _times(config: Config, workload: LayeredWorkload) -> LayerTimes:
    """Return the given times of an accelerator, else the passes' times here, with model.compute_ms at least."""
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
    return LayerTimes(*([longer * each_s for each_s in kind] for kind in (times.forward, times.error, times.weight)))


def _timed(workload: LayeredWorkload) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield each pass of one gradient, in the usual order."""
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
