"""OUT/report.html of `kofn experiment codecs`: claims, tables, and accuracy and iteration times over the iterations."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kofn.experiments.codecs.tables import LEGEND
from kofn.experiments.codecs.variants import DIGITS, LINKS, NO_FEEDBACK, Variant
from kofn.experiments.matrix import CellResult, by_scenario
from kofn.experiments.page import Element, configuration, series
from kofn.experiments.tables import TextTable
from kofn.report.figures import SIZE_INCHES, STYLE, WORKER_COLOURS, Series, TrialSeries, running_mean


def elements(tables: Iterable[TextTable], results: Sequence[CellResult]) -> Iterator[Element]:
    yield LEGEND
    yield from tables
    first = {name: several[0] for name, several in by_scenario(results).items()}
    yield from _figures({name: series(result) for name, result in first.items()})
    yield from map(configuration, first.values())


def _figures(known: Mapping[str, TrialSeries]) -> Iterator[Figure]:
    """Yield figures of the first seed: accuracy and norms of every codec, and iteration times when links slow down."""
    if digits := _chosen(known, DIGITS):
        lines: dict[str, dict[str, Series]] = defaultdict(dict)
        for name, entry in digits.items():
            accuracy = 100 * running_mean(entry.accuracy.y)
            lines["Held-out accuracy [%]"][name] = Series(x=np.arange(1.0, accuracy.size + 1), y=accuracy)
            for panel in entry.compression[1:]:
                lines[f"{panel.title} [{panel.unit}]"][name] = panel.measured
        yield panels_figure(lines)
    if links := _chosen(known, LINKS):
        times = {name: entry.iteration_ms for name, entry in links.items()}
        sent = {name: entry.compression[0].measured for name, entry in links.items() if entry.compression}
        yield panels_figure({"Iteration time [ms]": times, "Bytes sent of a gradient [of float32]": sent})


def _chosen(known: Mapping[str, TrialSeries], variants: Iterable[Variant]) -> dict[str, TrialSeries]:
    return {variant.name: known[variant.name] for variant in variants if variant.name in known}


def panels_figure(panels: Mapping[str, Mapping[str, Series]]) -> Figure:
    """Return panels in a column, by title, with a line for each variant over the iterations."""
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
    """Draw each variant in its colour, dashed without feedback."""
    stems = list(dict.fromkeys(name.removesuffix(NO_FEEDBACK) for name in lines))
    for name, line in lines.items():
        stem = name.removesuffix(NO_FEEDBACK)
        colour = WORKER_COLOURS[stems.index(stem) % len(WORKER_COLOURS)]
        axes.plot(line.x, line.y, "-" if name == stem else "--", color=colour, linewidth=1.2, label=name)
