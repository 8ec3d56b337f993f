"""The figures of the report: hindsights in, matplotlib figures out. No files."""

import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kofn.experiments.k.hindsight import MEAN, Hindsight, standings
from kofn.experiments.statistics import Spread
from kofn.report.figures import SIZE_INCHES, STYLE, TRIAL_COLOURS, Floats


def hindsight_figure(found: Sequence[Hindsight], objective: str) -> Figure:
    """Draw each scenario's mean of an objective's times divided by the times of the best fixed choice. A learning rate
    has a panel, and a number of workers has a colour."""
    rates = sorted({hindsight.fact("rate") for hindsight in found})
    worlds = list(dict.fromkeys(hindsight.fact("world") for hindsight in found))
    sizes = sorted({hindsight.workers for hindsight in found})
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 2.6 * len(rates)), layout="constrained")
        several = figure.subplots(len(rates), 1, sharex=True, squeeze=False)[:, 0]
        for axes, rate in zip(several, rates, strict=True):
            for standing in standings([hindsight for hindsight in found if hindsight.fact("rate") == rate], objective):
                if ratios := standing.ratios:
                    hindsight = standing.among
                    at = sizes.index(hindsight.workers)
                    place = worlds.index(hindsight.fact("world")) + 0.18 * (at - (len(sizes) - 1) / 2)
                    label = f"{hindsight.workers} workers" if hindsight.fact("world") == worlds[0] else None
                    axes.plot(place, ratios.mean, "o", color=TRIAL_COLOURS[at % len(TRIAL_COLOURS)], label=label)
            axes.axhline(1.0, color="black", linewidth=0.8)
            axes.axhline(MEAN, color="black", linewidth=0.8, linestyle="--")
            axes.set(title=f"{objective}, learning rate {rate:g}", ylabel="x best fixed")
        if several[0].get_legend_handles_labels()[0]:
            several[0].legend(loc="upper left")
        several[-1].set_xticks(range(len(worlds)), worlds, rotation=30, ha="right")
        return figure


def times_figure(found: Hindsight) -> Figure:
    """Draw the time to the target for each objective, and below it the iteration time, measured and predicted."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 6.4), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        several = found.standings
        places = np.arange(len(several), dtype=np.float64)
        _spreads(top, places, [standing.time for standing in several], 1.0, TRIAL_COLOURS[0], "median, least and most")
        top.set(title=f"{found.scenario}: time to {found.fact('target'):.0%}", ylabel="time [s]")
        measured = [standing.spread("mean_iteration_s") for standing in several]
        _spreads(bottom, places - 0.12, measured, 1e3, TRIAL_COLOURS[0], "measured")
        predicted = [standing.known_spread("predicted_iteration_s") for standing in several]
        _spreads(bottom, places + 0.12, predicted, 1e3, TRIAL_COLOURS[1], "predicted")
        bottom.set(title="mean iteration time", ylabel="iteration time [ms]")
        bottom.set_xticks(places, [standing.objective for standing in several], rotation=30, ha="right")
        for axes in (top, bottom):
            axes.set_ylim(bottom=0)
            axes.legend(loc="upper left")
        return figure


def _spreads(
    axes: Axes, places: Floats, spreads: Sequence[Spread | None], scale: float, colour: str, label: str
) -> None:
    """Draw a dot for each finite median, with a line from the least to the greatest value."""
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
