"""OUT/report.html of `kofn experiment codecs`: claims, tables, and accuracy and iteration times over the iterations."""

import html
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from run.claims import Verdict
from run.codecs.table import LEGEND
from run.codecs.variants import DIGITS, LINKS, NO_FEEDBACK, Variant
from run.experiment_report import configuration, write_experiment
from run.matrix import Result, by_scenario
from run.plots import SIZE_INCHES, STYLE, WORKER_COLOURS, PassSeries, Series, running_mean
from run.report import html_table, svg
from run.series import read_series

QUESTION = "What does compression cost, and what is it worth?"

Cells = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows."""


def write_codecs(
    folder: Path,
    parts: Sequence[Cells],
    verdicts: Sequence[Verdict],
    failures: Sequence[str],
    results: Sequence[Result],
) -> Path:
    """Write the report of runs that are finished; its path."""
    first = {name: several[0] for name, several in by_scenario(results).items()}
    series = {name: _series(result) for name, result in first.items()}
    return write_experiment(
        folder,
        "experiment codecs",
        QUESTION,
        verdicts,
        failures,
        f"<p>{html.escape(LEGEND)}</p>",
        *(html_table(headings, cells) for headings, cells in parts if cells),
        *_figures(series),
        *map(configuration, first.values()),
    )


def _series(result: Result) -> PassSeries:
    """A run's only pass."""
    (folder,) = result.cell.job().passes
    return read_series(folder, result.cell.config.job.workers)


def _figures(series: Mapping[str, PassSeries]) -> list[str]:
    """Of the first seed: accuracy and norms of every codec, iteration times of every link that slows down."""
    figures = []
    if digits := _chosen(series, DIGITS):
        lines: dict[str, dict[str, Series]] = defaultdict(dict)
        for name, entry in digits.items():
            accuracy = 100 * running_mean(entry.accuracy.y)
            lines["Held-out accuracy [%]"][name] = Series(x=np.arange(1.0, accuracy.size + 1), y=accuracy)
            for panel in entry.compression[1:]:
                lines[f"{panel.title} [{panel.unit}]"][name] = panel.measured
        figures.append(svg(panels_figure(lines)))
    if links := _chosen(series, LINKS):
        times = {name: entry.iteration_ms for name, entry in links.items()}
        sent = {name: entry.compression[0].measured for name, entry in links.items() if entry.compression}
        figures.append(
            svg(panels_figure({"Iteration time [ms]": times, "Bytes sent of a gradient [of float32]": sent}))
        )
    return figures


def _chosen(series: Mapping[str, PassSeries], variants: Iterable[Variant]) -> dict[str, PassSeries]:
    return {variant.name: series[variant.name] for variant in variants if variant.name in series}


def panels_figure(panels: Mapping[str, Mapping[str, Series]]) -> Figure:
    """A panel below another, by title, with a line for each variant over the iterations."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(SIZE_INCHES[0], 3.0 * len(panels)), layout="constrained")
        several = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (title, lines) in zip(several, panels.items(), strict=True):
            _draw(axes, lines)
            axes.set(title=f"{title}, first seed")
            axes.set_ylim(bottom=0)
        several[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        several[-1].set_xlabel("iteration")
        return figure


def _draw(axes: Axes, lines: Mapping[str, Series]) -> None:
    """A colour for each variant; dashed without feedback."""
    stems = list(dict.fromkeys(name.removesuffix(NO_FEEDBACK) for name in lines))
    for name, line in lines.items():
        stem = name.removesuffix(NO_FEEDBACK)
        colour = WORKER_COLOURS[stems.index(stem) % len(WORKER_COLOURS)]
        axes.plot(line.x, line.y, "-" if name == stem else "--", color=colour, linewidth=1.2, label=name)
