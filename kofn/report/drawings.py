"""The figures of a run's report, each with its caption and its numbers, and their files."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends import backend_pdf, backend_svg  # noqa: F401  # savefig would load these later
from matplotlib.figure import Figure

from kofn.report.costs_figure import LINK_LABELS, CostBar, costs_figure
from kofn.report.figures import (
    STYLE,
    Series,
    TrialSeries,
    compression_figure,
    iteration_figure,
    lambda_figure,
    longest_blocked,
    mark_numbers,
    metric_figure,
)
from kofn.report.svg import svg
from kofn_host.workload import Metric

Row = tuple[str | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure; `rows` are the figure's numbers, with `headings`."""

    name: str
    """The name of the figure's files, without suffix."""
    caption: str
    draw: Callable[[], Figure]
    headings: Sequence[str]
    rows: Sequence[Row]

    def write(self, folder: Path) -> Markup:
        """Write NAME.svg, NAME.pdf and NAME.csv; return the picture as an element of a page."""
        folder.mkdir(parents=True, exist_ok=True)
        figure = self.draw()
        element = svg(figure)
        (folder / f"{self.name}.svg").write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{element}')
        with mpl.rc_context(STYLE):  # fonts are embedded as text
            figure.savefig(folder / f"{self.name}.pdf", metadata={"CreationDate": None})
        with (folder / f"{self.name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([self.headings, *self.rows])
        return element


def drawings(
    trials: Sequence[TrialSeries], bars: Sequence[CostBar], metric: Metric | None, *, compresses: bool
) -> Iterator[Drawing]:
    """Yield figures of the metric, costs and compression, if the trials have them, and of the iteration time; then a
    figure of each trial's blocking and k. Yield nothing without a trial."""
    if metric is not None and any(entry.accuracy.x.size for entry in trials):
        yield Drawing(
            name=metric.name.replace(" ", "-"),
            caption=f"{metric.name.capitalize()} against the time since the first worker began its first iteration. A"
            f" dot is where a trial reached the target.{_marked(trials)}",
            draw=partial(metric_figure, trials, metric),
            headings=("trial", "time_s", metric.name),
            rows=[(entry.name, x, y) for entry in trials for x, y in _points(entry.accuracy)],
        )
    if trials:
        yield _iteration_time(trials)
    if any(bar.parts_s for bar in bars):
        yield _costs(bars)
    if compresses and any(entry.compression for entry in trials):
        yield _compression(trials)
    for number, entry in enumerate(trials, 1):
        yield _blocking(entry, number)


def _iteration_time(trials: Sequence[TrialSeries]) -> Drawing:
    quantities = ("iteration_ms", "predicted_ms", "expected_ms")
    return Drawing(
        name="iteration-time",
        caption="Time from an iteration's first finish to the next iteration's. Dots are iterations, solid lines are"
        " running means. Dashed lines are the controller's predictions for the k in force; dotted lines are E_k[T], the"
        f" expected time of the k-th first block alone.{_marked(trials)}",
        draw=partial(iteration_figure, trials),
        headings=("trial", "quantity", "iteration", "value"),
        rows=[
            (entry.name, quantity, x, y)
            for entry in trials
            for quantity in quantities
            for x, y in _points(getattr(entry, quantity))
        ],
    )


def _costs(bars: Sequence[CostBar]) -> Drawing:
    parts = [
        (bar.name, f"{part.removesuffix('_s')} [s]", time_s) for bar in bars for part, time_s in bar.parts_s.items()
    ]
    links = [
        (bar.name, f"{label} [bytes]", size)
        for bar in bars
        for label, size in zip(LINK_LABELS, astuple(bar.links), strict=True)
    ]
    return Drawing(
        name="costs",
        caption="Left: where an iteration's time went, the mean over all workers and all iterations but the first; the"
        " parts add up to the iteration. Right: bytes of Ethernet frames in an iteration over a worker's link to the"
        " switch (up) and from the switch (down), and over a parameter server's link.",
        draw=partial(costs_figure, bars),
        headings=("trial", "part", "value"),
        rows=[*parts, *links],
    )


def _compression(trials: Sequence[TrialSeries]) -> Drawing:
    return Drawing(
        name="compression",
        caption="The bytes sent of a gradient, the error of its encoding, and the values pending after the iteration:"
        f" means over the workers. Dashed lines are planned values.{_marked(trials)}",
        draw=partial(compression_figure, trials),
        headings=("trial", "panel", "quantity", "iteration", "value"),
        rows=[
            (entry.name, panel.title, quantity, x, y)
            for entry in trials
            for panel in entry.compression
            for quantity in ("measured", "planned")
            for x, y in _points(getattr(panel, quantity))
        ],
    )


def _blocking(entry: TrialSeries, number: int) -> Drawing:
    rows: list[Row] = [("k", "", x, y) for x, y in _points(entry.k)]
    for worker in longest_blocked(entry.workers):
        estimated = worker.estimated
        several = {
            "injected_ms": worker.injected,
            "estimated_ms": estimated,
            "low_ms": Series(x=estimated.x, y=worker.low),
            "high_ms": Series(x=estimated.x, y=worker.high),
        }
        rows += [(name, worker.rank, x, y) for name, series in several.items() for x, y in _points(series)]
    return Drawing(
        name=f"blocking-{number}",
        caption=f"Trial {entry.name}. Above: each worker's mean blocking time as it was injected (dashed) and as the"
        " controller estimated it (solid, the 95 % interval shaded); of many workers, those with the longest blocking."
        " Below: the k that closed the iteration."
        f"{_marked([entry])}",
        draw=partial(lambda_figure, entry),
        headings=("quantity", "worker", "iteration", "value"),
        rows=rows,
    )


def _points(series: Series) -> Iterator[tuple[float, float]]:
    return zip(series.x.tolist(), series.y.tolist(), strict=True)


def _marked(trials: Sequence[TrialSeries]) -> str:
    """Return the meaning of the numbers above the vertical lines."""
    numbers = mark_numbers(trials)
    return (
        f" Vertical lines: {'; '.join(f'{number}: {words}' for words, number in numbers.items())}." if numbers else ""
    )
