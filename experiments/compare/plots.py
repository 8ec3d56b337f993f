"""The figures of a comparison's report: arms and series in, matplotlib figures out.  Knows no files."""

from collections.abc import Mapping, Sequence
from statistics import median

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kofn.experiments.compare.arms import ContenderArm
from kofn.experiments.compare.columns import LINKS
from kofn.report.figures import SIZE_INCHES, STYLE, WORKER_COLOURS, Floats, Series, running_mean
from kofn.results.worker_metrics import TIME_PARTS

PART_COLOURS = dict(zip(TIME_PARTS, WORKER_COLOURS, strict=True)) | {"wait_s": "#d5d8db"}
BAR = 0.7
LIMIT_COLOUR = "#222222"


def setting_figure(arms: Sequence[ContenderArm]) -> Figure:
    """Beside each other, a bar a contender: where an iteration's time goes, bytes on the links, goodput."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.35 * SIZE_INCHES[0], 1.9 + 0.42 * len(arms)), layout="constrained")
        times, links, goodput = figure.subplots(1, 3, sharey=True, width_ratios=(2.4, 1.2, 0.9))
        places = np.arange(len(arms), dtype=np.float64)
        _draw_times(times, places, arms)
        _draw_links(links, places, arms)
        _draw_goodput(goodput, places, arms)
        times.set_yticks(places, [arm.contender.name for arm in arms])
        times.invert_yaxis()
        for axes in (times, links, goodput):
            axes.set_xlim(left=0)
        return figure


def _draw_times(axes: Axes, places: Floats, arms: Sequence[ContenderArm]) -> None:
    """Stacked: every moment is in exactly one part; a line where the link's limit is."""
    left = np.zeros(len(arms))
    for part, colour in PART_COLOURS.items():
        widths = np.array([1e3 * median(arm.known(part)) for arm in arms])
        axes.barh(places, widths, BAR, left=left, color=colour, label=part.removesuffix("_s"))
        left += widths
    limits = [1e3 * arm.point.limit_s for arm in arms]
    axes.vlines(limits, places - BAR / 2, places + BAR / 2, color=LIMIT_COLOUR, linewidth=1.6, label="the link's limit")
    axes.set(title="Where an iteration's time goes (mean)", xlabel="time [ms]")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=5, fontsize=8.0)


def _draw_links(axes: Axes, places: Floats, arms: Sequence[ContenderArm]) -> None:
    """Four thin bars a contender."""
    labels = ("worker, up", "worker, down", "server, up", "server, down")
    links = {label: [arm.spread(name).median for arm in arms] for label, name in zip(labels, LINKS, strict=True)}
    height = BAR / len(links)
    for number, (label, sizes) in enumerate(links.items()):
        at = places + (number - (len(links) - 1) / 2) * height
        axes.barh(at, np.array(sizes) / 1e6, height, color=WORKER_COLOURS[number], label=label)
    axes.set(title="Bytes per link, an iteration", xlabel="MB")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2, fontsize=8.0)


def _draw_goodput(axes: Axes, places: Floats, arms: Sequence[ContenderArm]) -> None:
    """A gradient's bytes over the iteration's time, of the link's rate; a line from least to most."""
    shares = [arm.spread("goodput_share") for arm in arms]
    axes.barh(places, [100 * share.median for share in shares], BAR, color=WORKER_COLOURS[0], alpha=0.8)
    axes.hlines(places, [100 * one.low for one in shares], [100 * one.high for one in shares], color=LIMIT_COLOUR)
    axes.axvline(100, color=LIMIT_COLOUR, linewidth=1.0, linestyle=":")
    axes.set(title="Goodput", xlabel="% of the link's rate")


def accuracy_figure(curves: Mapping[str, Series], target: float) -> Figure:
    """Held-out accuracy over time, a line for each contender, by name."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        collectives = list(dict.fromkeys(name.partition("-")[0] for name in curves))
        for name, curve in curves.items():
            collective, _, codec = name.partition("-")
            colour = WORKER_COLOURS[collectives.index(collective) % len(WORKER_COLOURS)]
            style = "--" if codec not in ("", "int32") else "-"
            axes.plot(curve.x, 100 * running_mean(curve.y), style, color=colour, linewidth=1.5, label=name)
        axes.axhline(100 * target, color="#555555", linestyle=":", label=f"target {target:.1%}")
        axes.set(title="Held-out accuracy, first seed", xlabel="time since the first iteration began [s]")
        axes.set(ylabel="accuracy [%]", xlim=(0, None))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return figure
