"""The figures of an experiment's report: findings and series in, matplotlib figures out.  Knows no files."""

import math
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from run.evidence import Findings, Spread
from run.plots import PASS_COLOURS, SIZE_INCHES, STYLE, Floats, Series


def times_figure(found: Findings) -> Figure:
    """Above, time to the target for each objective; below, the iteration time, measured and predicted."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 6.4), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        places = np.arange(len(found.rows), dtype=np.float64)
        _spreads(top, places, [row.time_s for row in found.rows], 1.0, PASS_COLOURS[0], "median, least and most")
        top.set(title=f"{found.scenario}: time to {found.target_accuracy:.0%}", ylabel="time [s]")
        measured = [row.measured_s for row in found.rows]
        _spreads(bottom, places - 0.12, measured, 1e3, PASS_COLOURS[0], "measured")
        predicted = [row.predicted_s for row in found.rows]
        _spreads(bottom, places + 0.12, predicted, 1e3, PASS_COLOURS[1], "predicted")
        bottom.set(title="mean iteration time", ylabel="iteration time [ms]")
        bottom.set_xticks(places, [row.objective for row in found.rows])
        for axes in (top, bottom):
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left")
        return figure


def _spreads(
    axes: Axes, places: Floats, spreads: Sequence[Spread | None], scale: float, colour: str, label: str
) -> None:
    """A dot for each median with a line from least to most; what never came is left out."""
    known = [
        (place, spread)
        for place, spread in zip(places, spreads, strict=True)
        if spread is not None and math.isfinite(spread.median)
    ]
    at = [place for place, _ in known]
    axes.plot(at, [scale * spread.median for _, spread in known], "o", color=colour, label=label)
    for place, spread in known:
        high = spread.high if math.isfinite(spread.high) else spread.median
        axes.plot([place, place], [scale * spread.low, scale * high], color=colour, linewidth=1.4)


def k_figure(found: Findings, ks: Mapping[str, Sequence[Series]]) -> Figure:
    """k over the iterations for each objective that chooses it, a line a seed; `ks`: by objective."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 2.4 * max(len(ks), 1)), layout="constrained")
        several = figure.subplots(max(len(ks), 1), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (objective, series) in zip(several, ks.items(), strict=False):
            for number, one in enumerate(series):
                axes.step(one.x, one.y, where="post", color=PASS_COLOURS[number % len(PASS_COLOURS)], linewidth=1.2)
            axes.set(title=f"{found.scenario}: k of {objective}, a line a seed", ylabel="k")
            axes.set_ylim(0.5, found.workers + 0.5)
        several[-1].set_xlabel("iteration")
        return figure
