"""Plots of figures over the seeds: means with 95 % intervals, in a column's width, with a legend beside the axes."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.types import is_numeric_dtype

from kofn.report.figures import STYLE
from kofn.report.frames import named
from kofn.report.interval import Interval

COLUMN_INCHES, HEIGHT_INCHES = 3.5, 2.4
"""The width of a column of a two-column paper, and the height of a panel."""

COLOURS = 10
"""The number of colours; more lines have the same colours in another style."""

DECADES = 30
"""Numbers whose largest is more than this many times the least have a logarithmic axis."""

DASHES: Sequence[tuple[float, ...]] = ((), (4, 1.5), (1, 1), (3, 1, 1, 1))
MARKERS = "osD^vP*X"


def draw(
    frame: pd.DataFrame,
    x: str,
    y: str,
    *,
    label: str,
    lines: str | None = None,
    panels: str | None = None,
    one: float | None = None,
) -> Axes | list[Axes]:
    """Draw column `y` over column `x`, with a line or row of dots for each value of column `lines`, in a panel for each
    value of column `panels`; return the axes of the panels, or of the only panel.

    `label` is the name of y. A horizontal line marks the value `one`.
    """
    titles = list(dict.fromkeys(frame[panels])) if panels else [None]
    style = {**STYLE, "font.size": 8.0, "lines.linewidth": 1.2, "lines.markersize": 4.0}
    with mpl.rc_context(style):
        figure = Figure(figsize=(COLUMN_INCHES * len(titles), HEIGHT_INCHES), layout="constrained")
        several = figure.subplots(1, len(titles), sharey=True, squeeze=False)[0]
        for axes, title in zip(several, titles, strict=True):
            rows = frame if panels is None else frame[frame[panels] == title]
            levels = list(dict.fromkeys(frame[lines])) if lines else []
            _panel(axes, rows.assign(**{x: _plain(rows[x])}), x, y, lines, levels)
            axes.set(xlabel=named(x), ylabel=named(label) if axes is several[0] else "")
            if is_numeric_dtype(rows[x]) and _decades(rows[x]):
                axes.set_xscale("log")
            if title is not None:
                axes.set_title(f"{panels} = {title}", fontsize=8.0)
            if one is not None:
                axes.axhline(one, color="black", linewidth=0.8)
                if _decades(frame[y]):
                    axes.set_yscale("log")
            if (legend := axes.get_legend()) is not None:
                legend.remove()
        if one is None:
            several[0].set_ylim(bottom=min(0.0, several[0].get_ylim()[0]))  # of all panels
        if lines:
            handles, names = several[0].get_legend_handles_labels()
            several[-1].legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0), title=named(lines))
    return list(several) if panels else several[0]


def _decades(values: "pd.Series[Any]") -> bool:
    """Return whether positive numbers span more than a decade and a half."""
    known = values.dropna().astype(float)
    return bool(len(known) and known.min() > 0 and known.max() > DECADES * known.min())


def _plain(values: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return numbers as numbers, and all else as text."""
    return values if is_numeric_dtype(values) and values.dtype != bool else values.astype(str)


def _panel(axes: Axes, rows: pd.DataFrame, x: str, y: str, lines: str | None, levels: Sequence[object]) -> None:
    """Draw one panel. A combination of x and line in which a seed has no value is left out."""
    keys = [x, *([lines] if lines and lines != x else [])]
    whole = rows.groupby(keys, sort=False)[y].transform(lambda values: values.notna().all())
    rows = rows[whole.astype(bool)]
    if rows.empty:
        axes.text(0.5, 0.5, "no value with every seed", ha="center", transform=axes.transAxes)
        return
    colours = sns.color_palette("colorblind", COLOURS)
    palette = {level: colours[number % COLOURS] for number, level in enumerate(levels)}
    if is_numeric_dtype(rows[x]):
        styles = {level: DASHES[number // COLOURS % len(DASHES)] for number, level in enumerate(levels)}
        markers = {level: MARKERS[number % len(MARKERS)] for number, level in enumerate(levels)}
        sns.lineplot(
            rows, x=x, y=y, hue=lines, style=lines, hue_order=levels or None, palette=palette or None,
            dashes=styles or True, markers=markers or None, estimator=_mean, errorbar=_interval, ax=axes,
        )  # fmt: skip
        if not _decades(rows[x]):
            axes.set_xticks(sorted(set(rows[x])))
    else:
        order = list(dict.fromkeys(rows[x]))
        shapes = [MARKERS[number // COLOURS % len(MARKERS)] for number, _ in enumerate(levels)]
        sns.pointplot(
            rows, x=x, y=y, hue=lines, order=order, hue_order=levels or None, palette=palette or None,
            linestyle="none", markers=shapes or "o",
            dodge=0.08 * (len(levels) - 1) if len(levels) > 1 else False, estimator=_mean, errorbar=_interval, ax=axes,
        )  # fmt: skip
        if sum(map(len, order)) > 24:
            axes.tick_params(axis="x", labelrotation=30)


def _mean(values: "pd.Series[float]") -> float:
    found = Interval.of(list(values))
    return np.nan if found is None else found.mean


def _interval(values: "pd.Series[float]") -> tuple[float, float]:
    found = Interval.of(list(values))
    if found is None or found.low is None or found.high is None:
        return (np.nan, np.nan) if found is None else (found.mean, found.mean)
    return found.low, found.high
