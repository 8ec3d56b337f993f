"""The report's figures: typed series in, matplotlib figures out, without any files.

A colour stands for a worker in figures about workers, and for a trial in figures about trials. Solid lines are measured
or estimated values; dashed lines are injected or predicted values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kofn_host.workload import Metric

Floats = npt.NDArray[np.float64]

SIZE_INCHES = (9.0, 4.2)
TRIAL_COLOURS = ("#0b6e99", "#d1495b", "#6a994e", "#7b5ea7", "#e09f3e", "#8d6e63", "#4d4d4d", "#d16ba5")
WORKER_COLOURS = ("#0b6e99", "#e09f3e", "#6a994e", "#d1495b", "#7b5ea7", "#8d6e63", "#4d4d4d", "#d16ba5")
LEGEND_WORKERS = 8
LEGEND_COLUMNS = 3
"""The most columns of a legend: more do not fit beside each other with the names of trials."""
LEGEND_INCHES = 0.22
"""The height of a legend's row."""
DRAWN_WORKERS = 64
"""The most workers in a figure: more lines would merge into an area, and take minutes to draw."""

SMOOTH = 15

STYLE: dict[Any, Any] = {  # matplotlib's own key type is a literal of every option
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10.0,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "kofn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values y over x; empty arrays draw nothing."""

    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeries:
    """One worker's mean blocking time over the iterations, in milliseconds."""

    rank: int
    injected: Series
    estimated: Series
    low: Floats  # lower ends of the estimate's interval, one for each value of `estimated`
    high: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A quantity of compression over the iterations: the mean over the workers, and the planned value, if there is
    one."""

    title: str
    unit: str
    measured: Series
    planned: Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A change during a trial."""

    words: str
    iteration: float
    """The newest iteration that had ended at the change."""
    time_s: float
    """Seconds since the first iteration began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSeries:
    """One trial."""

    name: str
    k: Series  # over the iterations
    accuracy: Series  # the metric, over seconds
    iteration_ms: Series  # over the iterations
    expected_ms: Series  # E_k[T] of the controller, over the iterations
    predicted_ms: Series  # the controller's prediction of the iteration time, over the iterations
    workers: tuple[WorkerSeries, ...]
    compression: tuple[Panel, ...] = ()  # over the iterations; empty if unknown
    marks: tuple[Mark, ...] = ()


def lambda_figure(entry: TrialSeries) -> Figure:
    """Draw the workers' injected and estimated mean blocking times above, and the k in force below."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 5.6), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.2))
        drawn = longest_blocked(entry.workers)
        for worker in drawn:
            _draw_worker(top, worker)
        top.set(title=f"Trial {entry.name}: blocking and k", ylabel="mean blocking time [ms]", yscale="symlog")
        top.set_ylim(bottom=0)
        top.yaxis.set_major_formatter("{x:g}")
        _worker_legend(top, drawn)
        bottom.step(entry.k.x, entry.k.y, where="post", color="#333333", linewidth=1.6)
        bottom.set(xlabel="iteration", ylabel="k", ylim=(0.5, len(entry.workers) + 0.5))
        bottom.yaxis.get_major_locator().set_params(integer=True)
        _draw_marks((top, bottom), [entry], over="iteration")
        return figure


def metric_figure(trials: Sequence[TrialSeries], metric: Metric) -> Figure:
    """Draw the metric of all trials over time, with the time at which each trial reached the target."""
    scale, unit = (100, " [%]") if metric.percent else (1, "")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        for entry, colour in zip(trials, _colours(trials), strict=True):
            values = entry.accuracy.y
            reached = np.flatnonzero(values >= metric.target if metric.better == "higher" else values <= metric.target)
            when = f"{entry.accuracy.x[reached[0]]:.1f} s to the target" if reached.size else "target not reached"
            label = f"{entry.name}: {when}"
            axes.plot(entry.accuracy.x, scale * values, color=colour, label=label, linewidth=1.8)
            if reached.size:
                axes.plot(entry.accuracy.x[reached[0]], scale * values[reached[0]], "o", color=colour)
        label = f"target {metric.text(metric.target)}"
        axes.axhline(scale * metric.target, color="#555555", linestyle=":", label=label)
        words = {"title": metric.name.capitalize(), "ylabel": f"{metric.name}{unit}"}
        axes.set(xlabel="time since the first iteration began [s]", **words)
        axes.set_xlim(left=0)
        axes.legend(loc="lower right" if metric.better == "higher" else "upper right")
        _draw_marks([axes], trials, over="time_s")
        return figure


def iteration_figure(trials: Sequence[TrialSeries]) -> Figure:
    """Draw the iteration time: measured (dots, and their running mean), the controller's prediction, and E_k[T]."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], SIZE_INCHES[1] + LEGEND_INCHES * len(trials)), layout="constrained")
        axes = figure.subplots()
        for entry, colour in zip(trials, _colours(trials), strict=True):
            measured = entry.iteration_ms
            axes.plot(measured.x, measured.y, ".", color=colour, alpha=0.25, markersize=4)
            axes.plot(
                measured.x,
                running_mean(measured.y),
                color=colour,
                linewidth=1.8,
                label=f"{entry.name}, mean of {SMOOTH}",
            )
            for series, style, words in ((entry.predicted_ms, "--", "predicted"), (entry.expected_ms, ":", "E_k[T]")):
                if series.x.size:
                    label = f"{entry.name}, {words}"
                    axes.plot(series.x, series.y, style, color=colour, linewidth=1.1, label=label)
        axes.set(title="Iteration time", xlabel="iteration", ylabel="iteration time [ms]", ylim=(0, _top(trials)))
        figure.legend(loc="outside lower center", ncols=min(len(trials), LEGEND_COLUMNS))
        _draw_marks([axes], trials, over="iteration")
        return figure


def compression_figure(trials: Sequence[TrialSeries]) -> Figure:
    """Draw panels for the bytes sent, the encoding error and the pending part, with all trials in each panel."""
    with mpl.rc_context(STYLE):
        known = [(entry, colour) for entry, colour in zip(trials, _colours(trials), strict=True) if entry.compression]
        count = max((len(entry.compression) for entry, _ in known), default=1)
        figure = Figure(figsize=(SIZE_INCHES[0], 2.4 * count), layout="constrained")
        several = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
        for entry, colour in known:
            for axes, panel in zip(several, entry.compression, strict=True):
                axes.plot(panel.measured.x, panel.measured.y, color=colour, linewidth=1.4, label=entry.name)
                axes.plot(panel.planned.x, panel.planned.y, "--", color=colour, linewidth=1.1)
                axes.set(title=panel.title, ylabel=panel.unit)
                axes.set_ylim(bottom=0)
        several[0].legend(loc="upper right", ncols=min(max(1, len(known)), LEGEND_COLUMNS))
        several[-1].set_xlabel("iteration")
        _draw_marks([*several], trials, over="iteration")
        return figure


def mark_numbers(trials: Sequence[TrialSeries]) -> dict[str, int]:
    """Number the changes from 1, trial by trial; equal changes have one number. Figures show these numbers."""
    words = dict.fromkeys(mark.words for entry in trials for mark in entry.marks)
    return {change: number for number, change in enumerate(words, 1)}


def running_mean(values: Floats, width: int = SMOOTH) -> Floats:
    """Return, for each value, the mean of the `width` values around it. At the two ends, the mean is over fewer
    values."""
    half = width // 2
    windows = (values[max(0, index - half) : index + half + 1] for index in range(len(values)))
    return np.array([np.mean(window) for window in windows])


def _draw_marks(
    several: Sequence[Axes], trials: Sequence[TrialSeries], *, over: Literal["iteration", "time_s"]
) -> None:
    """Draw a line in each trial's colour where the trial changed, with the change's number above the first axes."""
    numbers = mark_numbers(trials)
    for entry, colour in zip(trials, _colours(trials), strict=True):
        shade = colour if len(trials) > 1 else "#555555"
        above = several[0].get_xaxis_transform()
        for at, together in groupby(entry.marks, attrgetter(over)):
            for axes in several:
                axes.axvline(at, color=shade, linestyle=(0, (1, 2)), linewidth=1.0)
            words = ",".join(str(numbers[mark.words]) for mark in together)
            several[0].text(at, 1.0, words, color=shade, fontsize=8.0, ha="center", transform=above)


def longest_blocked(workers: Sequence[WorkerSeries]) -> Sequence[WorkerSeries]:
    """Return the workers with the longest injected blocking, at most DRAWN_WORKERS, by rank."""
    longest = sorted(workers, key=lambda worker: -worker.injected.y.max(initial=0.0))[:DRAWN_WORKERS]
    return sorted(longest, key=attrgetter("rank"))


def _draw_worker(axes: Axes, worker: WorkerSeries) -> None:
    colour = WORKER_COLOURS[worker.rank % len(WORKER_COLOURS)]
    estimated = worker.estimated
    axes.step(worker.injected.x, worker.injected.y, "--", where="post", color=colour, linewidth=1.2)
    axes.plot(estimated.x, estimated.y, color=colour, linewidth=1.8)
    axes.fill_between(estimated.x, worker.low, worker.high, color=colour, alpha=0.12, linewidth=0)


def _worker_legend(axes: Axes, workers: Sequence[WorkerSeries]) -> None:
    for worker in workers[:LEGEND_WORKERS]:
        axes.plot([], [], color=WORKER_COLOURS[worker.rank % len(WORKER_COLOURS)], label=f"worker {worker.rank}")
    axes.plot([], [], color="#333333", label="estimated (interval shaded)")
    axes.plot([], [], "--", color="#333333", linewidth=1.2, label="injected")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _colours(trials: Sequence[TrialSeries]) -> list[str]:
    return [TRIAL_COLOURS[index % len(TRIAL_COLOURS)] for index in range(len(trials))]


def _top(trials: Sequence[TrialSeries]) -> float:
    """Return a limit a little above almost all dots: one pause of the machine must not compress the rest."""
    values = np.concatenate([entry.iteration_ms.y for entry in trials])
    return 1.25 * float(np.quantile(values, 0.99)) if values.size else 1.0
