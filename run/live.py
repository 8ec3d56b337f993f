"""The live view of a pass: what the workers wrote merged with what the controller says.

A rich table on a terminal, one plain line a second elsewhere.  Knows no processes.
"""

import time
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rpc import kofn_pb2
from run.folder import PassFolder
from run.metrics import Iteration, Tail, Totals

PLAIN_INTERVAL_S = 1.0


def say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is: no markup, no colours by content, no breaks that spoil a path."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class WorkerView:
    """The latest of one worker."""

    rank: int
    tail: Tail
    last: Iteration | None = None
    loss: float | None = None
    late: int = 0
    finished: str = ""
    estimate: kofn_pb2.WorkerStatus = field(default_factory=kofn_pb2.WorkerStatus)

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        news = False
        for line in self.tail.read():
            news = True
            if isinstance(line, Totals):
                self.finished = line.reason
                continue
            self.last = line
            self.late += line.late
            self.loss = line.loss if line.loss is not None else self.loss
        return news


class PassView:
    """One pass as it goes on."""

    def __init__(self, folder: PassFolder, workers: int, title: str) -> None:
        """Nothing is read before the first poll()."""
        self.title = title
        self.workers = [WorkerView(rank, Tail(folder.metrics(rank))) for rank in range(workers)]
        self.status = kofn_pb2.Status()
        self.last_news = self._begin = time.monotonic()

    def begin(self) -> None:
        """The time starts now."""
        self.last_news = self._begin = time.monotonic()

    def poll(self) -> None:
        """Read the workers' new lines."""
        if any([worker.poll() for worker in self.workers]):
            self.last_news = time.monotonic()

    def update(self, status: kofn_pb2.Status) -> None:
        """Take the controller's word."""
        self.status = status
        for estimate in status.worker:
            if estimate.rank < len(self.workers):
                self.workers[estimate.rank].estimate = estimate

    def close(self) -> None:
        """Close the files."""
        for worker in self.workers:
            worker.tail.close()

    @property
    def newest(self) -> Iteration | None:
        """The iteration that the fastest replica finished last."""
        lasts = [worker.last for worker in self.workers if worker.last is not None]
        return max(lasts, key=lambda line: line.iteration, default=None)

    def absent(self) -> list[int]:
        """The ranks that the newest iteration's sum was made without."""
        newest = self.newest
        if newest is None or not newest.members:
            return []
        return [worker.rank for worker in self.workers if worker.rank not in newest.members]

    def loss(self) -> float | None:
        """The mean of the workers' latest losses."""
        losses = [worker.loss for worker in self.workers if worker.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def expected_s(self) -> float | None:
        """E_k[T] for the k in force."""
        return next((entry.iteration_s for entry in self.status.expected if entry.k == self.status.k), None)

    def headline(self) -> str:
        """Everything but the workers in one line."""
        newest = self.newest
        parts = [self.title, f"{time.monotonic() - self._begin:6.1f} s"]
        if newest is None:
            return "  ".join([*parts, "waiting for the workers' first iteration"])
        parts += [f"iteration {newest.iteration:4d}", f"loss {_number(self.loss(), '.3f')}"]
        parts += [f"accuracy {_percent(newest.accuracy)}", f"k {newest.k} of {len(self.workers)}"]
        if (expected := self.expected_s()) is not None:
            parts.append(f"E_k[T] {expected * 1e3:.1f} ms")
        return "  ".join(parts)

    def line(self) -> str:
        """The whole view in one plain line."""
        if self.newest is None:
            return self.headline()
        lambdas = " ".join(f"{_pair(worker)}" for worker in self.workers)
        late = ",".join(map(str, self.absent())) or "none"
        return f"{self.headline()}  late {late}  lambda/injected ms {lambdas}"

    def table(self) -> RenderableType:
        """The whole view as a headline and a row a worker."""
        if self.newest is None:
            return Text(self.headline(), style="bold")
        table = Table("worker", box=None, pad_edge=False, header_style="bold")
        for name in ("iteration", "loss", "lambda", "95 % interval", "injected", "late", "last", "state"):
            table.add_column(name, justify="left" if name in ("last", "state") else "right")
        absent = self.absent()
        for worker in self.workers:
            table.add_row(*self._row(worker, worker.rank in absent))
        return Group(Text(self.headline(), style="bold"), table)

    def _row(self, worker: WorkerView, absent: bool) -> list[RenderableType]:
        estimate, last = worker.estimate, worker.last
        interval = (
            f"{estimate.lambda_low_s * 1e3:.1f} to {estimate.lambda_high_s * 1e3:.1f}" if estimate.samples else "-"
        )
        return [
            str(worker.rank),
            str(last.iteration) if last else "-",
            _number(worker.loss, ".3f"),
            f"{estimate.lambda_s * 1e3:.1f} ms" if estimate.samples else "-",
            interval,
            f"{last.injected_mean_s * 1e3:.1f} ms" if last else "-",
            str(worker.late),
            Text("late", style="red") if absent else Text("in sum", style="green") if last else "",
            worker.finished
            or ("dead" if self.status.worker and not estimate.live else "training" if last else "starting"),
        ]


class Display:
    """Shows a PassView: in place on a terminal, as lines elsewhere, or not at all."""

    def __init__(self, console: Console, view: PassView, *, quiet: bool) -> None:
        """Use as a context manager."""
        self._console, self._view, self._quiet = console, view, quiet
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        self._printed, self._news = 0.0, -1.0

    def __enter__(self) -> "Display":
        """Start drawing."""
        if self._live is not None and not self._quiet:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Draw the last state and give the terminal back."""
        self.show(last=True)
        if self._live is not None and not self._quiet:
            self._live.stop()
        self._view.close()

    def show(self, *, last: bool = False) -> None:
        """Draw what the view knows now."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.update(self._view.table(), refresh=True)
        elif self._view.last_news != self._news and (last or time.monotonic() - self._printed >= PLAIN_INTERVAL_S):
            self._printed, self._news = time.monotonic(), self._view.last_news
            say(self._console, self._view.line())


def _pair(worker: WorkerView) -> str:
    estimate = f"{worker.estimate.lambda_s * 1e3:.1f}" if worker.estimate.samples else "-"
    truth = f"{worker.last.injected_mean_s * 1e3:.0f}" if worker.last else "-"
    return f"{estimate}/{truth}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
