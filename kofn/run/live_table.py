"""The live view of a job as a table that fits the terminal: a headline, the reason of a stall, a row for each worker.

On a terminal with fewer lines, workers with a problem keep their rows, and one row has the medians of the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kofn.report.table import UNLIMITED
from kofn.run.live import TrialView, WorkerView
from kofn.run.stall import OUT

HEADINGS = ("worker", "iteration", "lambda", "95 %", "injected", "late", "in sums", "state")
"""The headings of the table; with the longest usual cells, the table takes 80 columns of a terminal."""

SPARED = ("95 %", "injected", "lambda", "in sums", "iteration")
"""Columns that are left out on a narrower terminal, in this order, so that no cell is cut."""

CURSOR = 1
"""The line of the terminal that a live display leaves free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTable:
    """Draws one of several views that share a terminal's lines."""

    view: TrialView
    sharing: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = [Text(self.view.headline(), style="bold")]
        if self.view.stall:
            head.append(Text(self.view.stall, style="yellow"))
        yield from head
        if self.view.newest is None:
            return
        used = sum(len(console.render_lines(text, options, pad=False)) for text in head) + 1  # the headings
        lines = max((console.height - CURSOR) // self.sharing - used, 1)
        tables = (self._table(lines, SPARED[:spared]) for spared in range(len(SPARED) + 1))
        free = options.update(max_width=UNLIMITED)
        *wider, narrowest = ((table, console.measure(table, options=free).maximum) for table in tables)
        yield next((table for table, width in wider if width <= options.max_width), narrowest[0])

    def _table(self, lines: int, spared: Sequence[str]) -> Table:
        """Return a table of at most `lines` rows, without the columns `spared`."""
        kept = [column for column, name in enumerate(HEADINGS) if name not in spared]
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in (HEADINGS[column] for column in kept):
            table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        shown, others = split(self.view.workers, lines)
        absent = self.view.absent()
        for worker in shown:
            row = _row(worker, missing=worker.rank in absent)
            table.add_row(*(row[column] for column in kept))
        if others:
            medians = _medians(others)
            table.add_row(*(medians[column] for column in kept), style="dim")
        return table


def split(workers: Sequence[WorkerView], lines: int) -> tuple[list[WorkerView], list[WorkerView]]:
    """Return the workers that get a row each, in rank order, and the workers that share the last of the `lines` rows.

    Rows go to starved workers first, then to workers that are out, then to workers that are blocked longest; ties go to
    the lower rank.
    """
    if len(workers) <= lines:
        return [*workers], []
    needy = sorted(
        workers,
        key=lambda worker: (not worker.starved, worker.state not in OUT, -worker.estimate.lambda_s, worker.rank),
    )
    chosen = {worker.rank for worker in needy[: lines - 1]}
    shown = [worker for worker in workers if worker.rank in chosen]
    return shown, [worker for worker in workers if worker.rank not in chosen]


def _row(worker: WorkerView, *, missing: bool) -> list[RenderableType]:
    estimate, last = worker.estimate, worker.last
    known = estimate.samples > 0
    interval = f"{_milliseconds(estimate.lambda_low_s)}-{_milliseconds(estimate.lambda_high_s)}"
    return [
        str(worker.rank),
        str(last.iteration) if last else "-",
        f"{_milliseconds(estimate.lambda_s)} ms" if known else "-",
        interval if known else "-",
        f"{_milliseconds(last.injected_mean_s)} ms" if last else "-",
        str(worker.late),
        f"{worker.account.summed:.0f}/{worker.account.entered:.0f}" if worker.account else "-",
        _state(worker, missing=missing),
    ]


def _state(worker: WorkerView, *, missing: bool) -> Text:
    """Return a worker's state; while it trains, whether the newest sum has its gradient."""
    if worker.starved:
        return Text("starved", style="red")
    if worker.state not in ("training", ""):
        return Text(worker.state)
    return Text("missing", style="red") if missing else Text("in sum", style="green")


def _medians(workers: Sequence[WorkerView]) -> list[str]:
    """Return one row for many workers."""
    lasts = [worker.last for worker in workers if worker.last is not None]
    lambdas_s = [worker.estimate.lambda_s for worker in workers if worker.estimate.samples]
    return [
        "others",
        f"{median(last.iteration for last in lasts):.0f}" if lasts else "-",
        f"{_milliseconds(median(lambdas_s))} ms" if lambdas_s else "-",
        "",
        f"{_milliseconds(median(last.injected_mean_s for last in lasts))} ms" if lasts else "-",
        f"{median(worker.late for worker in workers):.0f}",
        "",
        f"{len(workers)} medians",
    ]


def _milliseconds(time_s: float) -> str:
    """Return milliseconds in at most four characters, up to 10 s."""
    return f"{1e3 * time_s:.1f}" if time_s < 0.0995 else f"{1e3 * time_s:.0f}"
