"""The live view of one job in a trial: the workers' lines merged with the controller's statuses.

This module formats the view as lines, kofn/run/live_table.py as a table, and kofn/run/display.py shows both. This
module knows no processes.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kofn.report.compressed import Compressed
from kofn.run.stall import LOADING, STALL_S, START_S, Scene, StalledWorker, Watch, explain, starting
from kofn_common.results.account import STARVED, Account
from kofn_common.results.folder import TrialFolder
from kofn_common.results.ranks import name_workers, ranges
from kofn_common.results.tail import LineTail
from kofn_common.results.worker_metrics import Iteration, Logged, Tail, Totals, last_logged
from kofn_common.results.worker_state import worker_state
from kofn_common.rpc import kofn_pb2
from kofn_common.running_clock import RunningClock
from kofn_host.workload import Metric

SHOWN = 0.05
"""The least number of gradients, by weight, that is shown."""

PRINTED_LINES = 10
"""The most lines of a script that are shown at a time."""

PRINTED_LENGTH = 200
"""The most characters of a script's line that are shown."""

PYTORCH = re.compile(r"\[[IW]\d{4} [\d:.]+ \w+\.cpp:\d+\]")
"""The beginning of a line of PyTorch's own log, which is not shown."""

PAUSE_S = 10.0
"""The longest time between two polls of a running process: an event may take seconds."""
RECENT_S = 5.0
"""The explanation of a stall names the events of this many seconds before the stall."""


@dataclass(slots=True)
class WorkerView:
    """The latest state of one worker."""

    rank: int
    tail: Tail
    metric: Metric | None
    last: Iteration | None = None
    loss: float | None = None
    accuracy: float | None = None
    logged: dict[str, float | None] = field(default_factory=dict)
    """The latest numbers that the worker's script logged."""
    account: Account | None = None
    late: int = 0
    finished: str = ""
    process: str = ""
    """"killed" or "not started"; empty while the process runs, or has ended by itself."""
    estimate: kofn_pb2.WorkerStatus = field(default_factory=kofn_pb2.WorkerStatus)

    def poll(self) -> bool:
        """Read new lines; return whether there were any."""
        news = False
        for line in self.tail.read():
            news = True
            if isinstance(line, Totals):
                self.finished = line.reason
                continue
            if isinstance(line, Logged):
                self.logged |= line.logged
                continue
            self.last, self.finished = line, ""  # a restarted worker continues the same file
            self.late += line.late
            self.account = line.account or self.account
            self.loss = line.loss if line.loss is not None else self.loss
            self.accuracy = line.accuracy if line.accuracy is not None else self.accuracy
        return news

    @property
    def state(self) -> str:
        return worker_state(self.process or self.finished or self.estimate.state, self.iteration)

    @property
    def iteration(self) -> int:
        """The newest iteration that the worker has finished; 0: none."""
        return self.last.iteration if self.last else 0

    @property
    def starved(self) -> bool:
        """Whether the worker's gradients are in no sum."""
        return self.estimate.unheard >= STARVED

    def member(self) -> StalledWorker:
        """Return the worker's state for the explanation of a stall."""
        return StalledWorker(
            rank=self.rank,
            iteration=self.iteration,
            state=self.state,
            silent_s=self.estimate.silent_s,
            done=self.done,
        )

    @property
    def done(self) -> bool:
        """Whether the worker has ended, or has trained to the end and waits for the others' end."""
        return bool(self.finished) or (self.metric is not None and self.metric.reached(self.accuracy))


class TrialView:
    """One job's part of a running trial."""

    def __init__(
        self,
        folder: TrialFolder,
        workers: int,
        title: str,
        *,
        metric: Metric | None,
        compresses: bool = False,
        script: Path | None = None,
    ) -> None:
        """Open the files, which the first poll() reads; workers end at the target of `metric`.

        If `script` replaces kofn's own training, worker 0's output is shown.
        """
        self.title, self._compresses, self._metric = title, compresses, metric
        self._start = LOADING if script is None else f"importing PyTorch and running {script.name}"
        self._printed = None if script is None else LineTail(folder.log("worker-0"))
        self.workers = [WorkerView(rank, Tail(folder.metrics(rank)), metric) for rank in range(workers)]
        self.status = kofn_pb2.Status()
        self.running: Callable[[], float] = RunningClock(PAUSE_S)
        self.begin()
        self._lines: list[str] = []
        self._recent: list[tuple[float, str]] = []
        self._watch = Watch()
        self._away = False

    def begin(self) -> None:
        self._begin, self.last_news = time.monotonic(), self.running()

    def poll(self) -> None:
        """Read the workers' new lines."""
        now_s = self.running()
        if any([worker.poll() for worker in self.workers]):
            self.last_news = now_s

    @property
    def idle_s(self) -> float:
        """The time since the last finished iteration, without the times in which this process did not run."""
        return self.running() - self.last_news

    def happened(self, words: str) -> None:
        """Show an intervention in this job, and name it in the next stall's explanation."""
        self.remember(words)
        self._say(f"event: {words}")

    def remember(self, words: str) -> None:
        """Note an intervention that may stop this job, for the next stall's explanation."""
        self._recent.append((self.running(), words))

    def watch_stall(self, *, expected: bool) -> None:
        """Explain a stall, if progress is expected."""
        idle_s = self.idle_s if expected else 0.0
        since = self.last_news - RECENT_S
        self._recent = [entry for entry in self._recent if entry[0] >= since]
        moves = self.newest and not all(worker.done for worker in self.workers)
        for line in self._watch.lines(idle_s, STALL_S if moves else START_S, self.reason()):
            self._say(line)

    def reason(self) -> str:
        return explain(self._scene())

    def _scene(self) -> Scene:
        return Scene(
            members=[worker.member() for worker in self.workers],
            start=self._start,
            waiting=self.status.waiting,
            controller_away=self._away,
            switch_connected=self.status.switch_connected or not self.status.workers,
            recent=[words for _, words in self._recent],
        )

    def _say(self, words: str) -> None:
        self._lines.append(f"{self._clock()}  {words}")

    def _clock(self) -> str:
        return f"{self.title}  {time.monotonic() - self._begin:6.1f} s"

    def printed(self) -> list[str]:
        """Return new lines from worker 0's script. If there are more than PRINTED_LINES, return the first lines and the
        log's name."""
        if self._printed is None:
            return []
        lines = [line.decode(errors="replace").strip()[:PRINTED_LENGTH] for line in self._printed.lines()]
        own = [f"worker 0: {line}" for line in lines if not PYTORCH.match(line)]
        more = [f"worker 0: {len(own) - PRINTED_LINES} lines more in {self._printed.path}"]
        return own[:PRINTED_LINES] + more * (len(own) > PRINTED_LINES)

    def news(self) -> list[str]:
        """Return new lines that are shown once."""
        lines, self._lines = self._lines, []
        return lines

    def update(self, status: kofn_pb2.Status | None) -> None:
        """Take the controller's status; None: the controller is away."""
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
        if self._printed is not None:
            self._printed.close()
        for worker in self.workers:
            worker.tail.close()

    @property
    def newest(self) -> Iteration | None:
        """The latest iteration of the fastest replica."""
        lasts = [worker.last for worker in self.workers if worker.last is not None]
        return max(lasts, key=lambda line: line.iteration, default=None)

    def absent(self) -> list[int]:
        """Return the ranks that are missing in the newest iteration's sum."""
        newest = self.newest
        members = int(newest.members, 16) if newest else 0
        return [worker.rank for worker in self.workers if members and not members >> worker.rank & 1]

    def accuracy(self) -> float | None:
        """Return the fastest replica's latest accuracy."""
        newest = self.newest
        return next((worker.accuracy for worker in self.workers if newest and worker.last is newest), None)

    def loss(self) -> float | None:
        """Return the mean of the workers' latest losses."""
        losses = [worker.loss for worker in self.workers if worker.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def expected_s(self) -> float | None:
        """Return E_k[T] for the k in force."""
        return next((entry.iteration_s for entry in self.status.expected if entry.k == self.status.k), None)

    def headline(self) -> str:
        """Return one line with everything but the workers."""
        newest = self.newest
        parts = [self._clock()]
        if newest is None:
            return "  ".join([*parts, starting(self._scene()) or "waiting for the workers' first iteration"])
        parts += [f"iteration {newest.iteration:4d}", f"loss {_number(self.loss(), '.3f')}"]
        if self._metric is not None:
            parts.append(f"{self._metric.name} {self._metric.text(self.accuracy())}")
        logged = last_logged(worker.logged for worker in self.workers)
        parts += [f"{name} {value:.4g}" for name, value in logged.items()]
        parts.append(f"k {newest.k} of {len(self.workers)}")
        if (expected := self.expected_s()) is not None:
            parts.append(f"E_k[T] {expected * 1e3:.1f} ms")
        return "  ".join(parts + self._compression())

    def _compression(self) -> list[str]:
        """Return the share of bytes sent in the newest iterations; empty if gradients are not compressed."""
        lines = [worker.last for worker in self.workers if worker.last is not None]
        compressed = Compressed.of(lines) if self._compresses else None
        if compressed is None:
            return []
        return [f"{100 * compressed.wire_ratio:.0f} % of the bytes"]

    def line(self) -> str:
        """Return the whole view in one plain line."""
        if self.newest is None:
            return self.headline()
        missing = ranges(self.absent()) or "none"
        starving = [worker.rank for worker in self.workers if worker.starved]
        starved = f"  {name_workers(starving)} STARVED" if starving else ""
        return f"{self.headline()}  missing {missing}{self._fate()}{starved}"

    def _fate(self) -> str:
        """Return the fate of the gradients of the worker with most late gradients; empty if none was late."""
        worker = max(self.workers, key=lambda worker: worker.late)
        account = worker.account
        if not worker.late or account is None:
            return ""
        rest = (("pending", account.waiting), ("discarded", account.discarded))
        left = "".join(f", {weight:.1f} {name}" for name, weight in rest if weight >= SHOWN)
        return f"  worker {worker.rank}: {account.summed:.1f} of {account.entered:.0f} gradients in sums{left}"

    @property
    def stall(self) -> str:
        """The explanation of a stall; empty during progress."""
        return self._watch.stall


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
