"""A bar for each trial or contender: the parts of an iteration's time, and its bytes on the links."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kofn.report.figures import SIZE_INCHES, STYLE, WORKER_COLOURS, Floats
from kofn.report.iteration_costs import LinkMeans
from kofn_common.results.worker_metrics import TIME_PARTS

PART_COLOURS = dict(zip(TIME_PARTS, WORKER_COLOURS, strict=True)) | {"wait_s": "#d5d8db"}
LINK_LABELS = ("worker, up", "worker, down", "server or uplink, up", "server or uplink, down")
"""Labels of the fields of LinkMeans, in their order."""
BAR = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBar:
    """One bar. `parts_s` has the seconds of each of TIME_PARTS, by its name; it is empty if the times are unknown."""

    name: str
    parts_s: Mapping[str, float]
    links: LinkMeans


def costs_figure(bars: Sequence[CostBar]) -> Figure:
    """Draw times on the left and bytes on the right."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 1.9 + 0.42 * len(bars)), layout="constrained")
        times, links = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
        draw_times(times, bars)
        draw_links(links, bars)
        name_bars(times, [bar.name for bar in bars])
        for axes in (times, links):
            axes.set_xlim(left=0)
        return figure


def places(bars: Sequence[CostBar]) -> Floats:
    return np.arange(len(bars), dtype=np.float64)


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Write the names beside the bars, and put the first bar on top."""
    axes.set_yticks(np.arange(len(names), dtype=np.float64), names)
    axes.invert_yaxis()


def draw_times(axes: Axes, bars: Sequence[CostBar]) -> None:
    """Stack the parts: every moment is in exactly one part."""
    left = np.zeros(len(bars))
    for part, colour in PART_COLOURS.items():
        widths = np.array([1e3 * bar.parts_s.get(part, 0.0) for bar in bars])
        axes.barh(places(bars), widths, BAR, left=left, color=colour, label=part.removesuffix("_s"))
        left += widths
    axes.set(title="Where an iteration's time goes (mean)", xlabel="time [ms]")
    _legend(axes, 5)


def draw_links(axes: Axes, bars: Sequence[CostBar]) -> None:
    """Draw four thin bars for each trial or contender."""
    height = BAR / len(LINK_LABELS)
    sizes = np.array([astuple(bar.links) for bar in bars])
    for number, label in enumerate(LINK_LABELS):
        at = places(bars) + (number - (len(LINK_LABELS) - 1) / 2) * height
        known = label if sizes[:, number].any() else None
        axes.barh(at, sizes[:, number] / 1e6, height, color=WORKER_COLOURS[number], label=known)
    axes.set(title="Bytes per link, an iteration", xlabel="MB")
    _legend(axes, 2)


def _legend(axes: Axes, columns: int) -> None:
    """Put a legend below the axes, unless no bar has a label, as for links without counts."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), fontsize=8.0, ncols=columns)
