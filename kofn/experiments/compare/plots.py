"""The figures of a comparison's report: arms and series in, matplotlib figures out. No files."""

from collections.abc import Mapping, Sequence
from statistics import median

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kofn.experiments.compare.arms import ContenderArm
from kofn.experiments.compare.columns import LINKS
from kofn.report.costs_figure import BAR, CostBar, draw_links, draw_times, name_bars, places
from kofn.report.figures import SIZE_INCHES, STYLE, WORKER_COLOURS, Floats, Series, running_mean
from kofn.report.iteration_costs import LinkMeans
from kofn_common.results.worker_metrics import TIME_PARTS

LIMIT_COLOUR = "#222222"


def setting_figure(arms: Sequence[ContenderArm]) -> Figure:
    """Draw bars of every contender: the parts of an iteration's time, bytes on the links, and goodput."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.35 * SIZE_INCHES[0], 1.9 + 0.42 * len(arms)), layout="constrained")
        times, links, goodput = figure.subplots(1, 3, sharey=True, width_ratios=(2.4, 1.2, 0.9))
        bars = list(map(_bar, arms))
        _draw_limits(times, places(bars), arms)
        draw_times(times, bars)
        draw_links(links, bars)
        _draw_goodput(goodput, places(bars), arms)
        name_bars(times, [bar.name for bar in bars])
        for axes in (times, links, goodput):
            axes.set_xlim(left=0)
        return figure


def _bar(arm: ContenderArm) -> CostBar:
    """Return the bar of medians over the seeds."""
    links = LinkMeans(**{name: arm.spread(name).median for name in LINKS})
    parts_s = {part: median(arm.known(part)) for part in TIME_PARTS}
    return CostBar(name=arm.contender.name, parts_s=parts_s, links=links)


def _draw_limits(axes: Axes, at: Floats, arms: Sequence[ContenderArm]) -> None:
    limits = [1e3 * arm.point.limit_s for arm in arms]
    axes.vlines(limits, at - BAR / 2, at + BAR / 2, color=LIMIT_COLOUR, linewidth=1.6, label="the link's limit")


def _draw_goodput(axes: Axes, at: Floats, arms: Sequence[ContenderArm]) -> None:
    """Draw the goodput: a gradient's bytes divided by the iteration's time, as a share of the link's rate. A line goes
    from the least to the greatest value over the seeds."""
    shares = [arm.spread("goodput_share") for arm in arms]
    axes.barh(at, [100 * share.median for share in shares], BAR, color=WORKER_COLOURS[0], alpha=0.8)
    axes.hlines(at, [100 * share.low for share in shares], [100 * share.high for share in shares], color=LIMIT_COLOUR)
    axes.axvline(100, color=LIMIT_COLOUR, linewidth=1.0, linestyle=":")
    axes.set(title="Goodput", xlabel="% of the link's rate")


def accuracy_figure(curves: Mapping[str, Series], target: float) -> Figure:
    """Draw held-out accuracy over time, a line for each contender, by name."""
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
