"""The live view of one job in a trial: what the workers wrote merged with what the controller says.

As lines and as a table; run/display.py shows them.  Knows no processes.
"""

import time
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kofn.host.workload.metric import Metric
from kofn.report.compressed import Compressed
from kofn.results.account import STARVED
from kofn.results.folder import TrialFolder
from kofn.results.worker_metrics import Iteration, Tail, Totals
from kofn.rpc import kofn_pb2
from kofn.run.stall import STALL_S, START_S, Scene, StalledWorker, Watch, explain

RECENT_S = 5.0
"""How long before a stall something may have happened to be named as what was just before it."""


@dataclass(slots=True)
class WorkerView:
    """The latest of one worker."""

    rank: int
    tail: Tail
    metric: Metric | None
    last: Iteration | None = None
    loss: float | None = None
    accuracy: float | None = None
    late: int = 0
    finished: str = ""
    process: str = ""
    """"killed" or "not started"; empty while the process runs, or has ended by itself."""
    estimate: kofn_pb2.WorkerStatus = field(default_factory=kofn_pb2.WorkerStatus)

    def poll(self) -> bool:
        """Read what is new; whether there was anything."""
        news = False
        for line in self.tail.read():
            news = True
            if isinstance(line, Totals):
                self.finished = line.reason
                continue
            self.last, self.finished = line, ""  # a worker that was started again goes on in the same file
            self.late += line.late
            self.loss = line.loss if line.loss is not None else self.loss
            self.accuracy = line.accuracy if line.accuracy is not None else self.accuracy
        return news

    @property
    def state(self) -> str:
        said = self.process or self.finished or self.estimate.state
        return said or ("training" if self.last else "starting")

    @property
    def starved(self) -> bool:
        """Its gradients are in no sum."""
        return self.estimate.unheard >= STARVED

    def member(self) -> StalledWorker:
        """For the explanation of a stall."""
        iteration = self.last.iteration if self.last else 0
        return StalledWorker(
            rank=self.rank,
            iteration=iteration,
            state=self.state,
            silent_s=self.estimate.silent_s,
            done=bool(self.finished) or self._at_goal,
        )

    @property
    def _at_goal(self) -> bool:
        """It has trained to the end, and waits for the others'."""
        return self.metric is not None and self.metric.reached(self.accuracy)


class TrialView:
    """One job's part of a trial as it goes on."""

    def __init__(
        self, folder: TrialFolder, workers: int, title: str, *, metric: Metric | None, compresses: bool = False
    ) -> None:
        """Nothing is read before the first poll(); workers end at the target of `metric`."""
        self.title, self._compresses, self._metric = title, compresses, metric
        self.workers = [WorkerView(rank, Tail(folder.metrics(rank)), metric) for rank in range(workers)]
        self.status = kofn_pb2.Status()
        self.last_news = self._begin = time.monotonic()
        self._lines: list[str] = []
        self._recent: list[tuple[float, str]] = []
        self._watch = Watch()
        self._away = False

    def begin(self) -> None:
        self.last_news = self._begin = time.monotonic()

    def poll(self) -> None:
        """Read the workers' new lines."""
        if any([worker.poll() for worker in self.workers]):
            self.last_news = time.monotonic()

    def happened(self, words: str) -> None:
        """Something was done to this job: a line of its own, and a part of the next stall's explanation."""
        self.remember(words)
        self._say(f"event: {words}")

    def remember(self, words: str) -> None:
        """Something was done that may hold this job up: a part of the next stall's explanation."""
        self._recent.append((time.monotonic(), words))

    def watch_stall(self, *, expected: bool) -> None:
        """Say why nothing moves, if something is expected to."""
        idle_s = time.monotonic() - self.last_news if expected else 0.0
        since = self.last_news - RECENT_S
        self._recent = [entry for entry in self._recent if entry[0] >= since]
        for line in self._watch.lines(idle_s, STALL_S if self.newest else START_S, self.reason()):
            self._say(line)

    def reason(self) -> str:
        return explain(self._scene())

    def _scene(self) -> Scene:
        return Scene(
            members=[worker.member() for worker in self.workers],
            waiting=self.status.waiting,
            controller_away=self._away,
            switch_connected=self.status.switch_connected or not self.status.workers,
            recent=[words for _, words in self._recent],
        )

    def _say(self, words: str) -> None:
        self._lines.append(f"{self._clock()}  {words}")

    def _clock(self) -> str:
        return f"{self.title}  {time.monotonic() - self._begin:6.1f} s"

    def news(self) -> list[str]:
        """The lines that are to be said once, and have not been yet."""
        lines, self._lines = self._lines, []
        return lines

    def update(self, status: kofn_pb2.Status | None) -> None:
        """Take the controller's word; None: it is away."""
        if self._away != (status is None):
            self._away = status is None
            self._say("the controller is away" if self._away else "the controller is back")
        if status is None:
            return
        self.status = status
        for estimate in status.worker:
            if estimate.rank < len(self.workers):
                self.workers[estimate.rank].estimate = estimate

    def close(self) -> None:
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

    def accuracy(self) -> float | None:
        """The latest that the fastest replica knows."""
        newest = self.newest
        return next((worker.accuracy for worker in self.workers if newest and worker.last is newest), None)

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
        parts = [self._clock()]
        if newest is None:
            return "  ".join([*parts, "waiting for the workers' first iteration"])
        parts += [f"iteration {newest.iteration:4d}", f"loss {_number(self.loss(), '.3f')}"]
        if self._metric is not None:
            parts.append(f"{self._metric.name} {self._metric.text(self.accuracy())}")
        parts.append(f"k {newest.k} of {len(self.workers)}")
        if (expected := self.expected_s()) is not None:
            parts.append(f"E_k[T] {expected * 1e3:.1f} ms")
        return "  ".join(parts + self._compression())

    def _compression(self) -> list[str]:
        """What the newest iterations of the workers have sent, where anything is compressed."""
        lines = [worker.last for worker in self.workers if worker.last is not None]
        compressed = Compressed.of(lines) if self._compresses else None
        if compressed is None:
            return []
        norms = (("error", compressed.error_norm), ("residual", compressed.residual_norm))
        return [
            f"ratio {compressed.wire_ratio:.2f}",
            *(f"{name} {norm:.3g}" for name, norm in norms if norm is not None),
        ]

    def line(self) -> str:
        """The whole view in one plain line."""
        if self.newest is None:
            return self.headline()
        lambdas = " ".join(f"{_pair(worker)}" for worker in self.workers)
        late = ",".join(map(str, self.absent())) or "none"
        shares = "/".join(f"{100 * worker.estimate.share:.0f}" for worker in self.workers)
        starved = "".join(f"  worker {worker.rank} STARVED" for worker in self.workers if worker.starved)
        return f"{self.headline()}  late {late}  lambda/injected ms {lambdas}  shares {shares} %{starved}"

    def table(self) -> RenderableType:
        """The whole view as a headline, the reason of a stall, and a row a worker."""
        head = [Text(self.headline(), style="bold")]
        if self._watch.stall:
            head.append(Text(self._watch.stall, style="yellow"))
        if self.newest is None:
            return Group(*head)
        table = Table("worker", box=None, pad_edge=False, header_style="bold")
        for name in ("iteration", "loss", "lambda", "95 % interval", "injected", "late", "share", "last", "state"):
            table.add_column(name, justify="left" if name in ("last", "state") else "right")
        absent = self.absent()
        for worker in self.workers:
            table.add_row(*self._row(worker, worker.rank in absent))
        return Group(*head, table)

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
            f"{100 * estimate.share:.1f} %",
            Text("late", style="red") if absent else Text("in sum", style="green") if last else "",
            Text(f"starved, {worker.state}", style="red") if worker.starved else worker.state,
        ]


def _pair(worker: WorkerView) -> str:
    estimate = f"{worker.estimate.lambda_s * 1e3:.1f}" if worker.estimate.samples else "-"
    truth = f"{worker.last.injected_mean_s * 1e3:.0f}" if worker.last else "-"
    return f"{estimate}/{truth}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
