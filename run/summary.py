"""What the passes of a run achieved, compared: a pass that misses its target or a check makes the run fail."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from run.checks import conservation, identity
from run.config import Config
from run.folder import PassFolder, RunFolder
from run.metrics import Iteration, Totals, WorkerMetrics, read_pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSummary:
    """One pass; times in seconds from the first worker's first iteration."""

    objective: str
    time_to_target_s: float | None
    iterations_to_target: int | None
    duration_s: float
    iterations: int
    best_accuracy: float
    median_iteration_s: float
    late_contributions: int
    late_by_worker: tuple[int, ...]
    bytes_sent: int
    bytes_received: int
    packets_sent: int
    packets_received: int
    retransmissions: int
    k_iterations: dict[int, int]
    identity_error: str | None
    conservation_error: str | None

    def failures(self, target: float) -> list[str]:
        """Why this pass does not count, one sentence each."""
        reasons = [error for error in (self.identity_error, self.conservation_error) if error]
        if self.time_to_target_s is None:
            reasons.append(
                f"accuracy {target:.1%} was not reached in {self.iterations} iterations (best {self.best_accuracy:.1%})"
            )
        return [f"pass {self.objective}: {reason}" for reason in reasons]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A whole run; the last pass is the baseline."""

    target_accuracy: float
    passes: tuple[PassSummary, ...]

    @property
    def failures(self) -> list[str]:
        """Every reason why the run failed; empty if it did not."""
        return [reason for entry in self.passes for reason in entry.failures(self.target_accuracy)]

    @property
    def speedup(self) -> float | None:
        """The baseline's time to the target divided by the first pass's; None without two times."""
        first, baseline = self.passes[0], self.passes[-1]
        if len(self.passes) < 2 or first.time_to_target_s is None or baseline.time_to_target_s is None:
            return None
        return baseline.time_to_target_s / first.time_to_target_s

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": not self.failures,
            "failures": self.failures,
            "target_accuracy": self.target_accuracy,
            "speedup": self.speedup,
            "passes": [asdict(entry) for entry in self.passes],
        }

    def rows(self) -> list[list[str]]:
        """The table: a label and a cell for each pass."""
        target = f"time to {self.target_accuracy:.1%} accuracy"
        return [
            [target, *(_seconds(entry.time_to_target_s) for entry in self.passes)],
            ["baseline / this", *(_ratio(self.passes[-1], entry) for entry in self.passes)],
            ["iterations to target", *(_integer(entry.iterations_to_target) for entry in self.passes)],
            ["iterations in all", *(_integer(entry.iterations) for entry in self.passes)],
            ["median iteration time", *(f"{entry.median_iteration_s * 1e3:.1f} ms" for entry in self.passes)],
            ["k used (iterations)", *(_counts(entry.k_iterations) for entry in self.passes)],
            ["late contributions", *(_late(entry) for entry in self.passes)],
            ["sent", *(_traffic(entry.bytes_sent, entry.packets_sent) for entry in self.passes)],
            ["received", *(_traffic(entry.bytes_received, entry.packets_received) for entry in self.passes)],
            ["retransmissions", *(_integer(entry.retransmissions) for entry in self.passes)],
            ["replicas bit-identical", *("NO" if entry.identity_error else "yes" for entry in self.passes)],
            ["gradients conserved", *("NO" if entry.conservation_error else "exactly" for entry in self.passes)],
        ]

    def headings(self) -> list[str]:
        """The table's first row: the objectives, the baseline marked."""
        names = [entry.objective for entry in self.passes]
        return names if len(names) < 2 else [*names[:-1], f"{names[-1]} (baseline)"]

    def table(self) -> Table:
        """For the terminal."""
        table = Table("", *self.headings(), box=None, pad_edge=False, header_style="bold")
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows():
            table.add_row(*row)
        return table


def summarise(folder: RunFolder, config: Config) -> Summary:
    """Read every pass's files and compute everything; RunError if a file is missing or damaged."""
    passes = tuple(
        summarise_pass(entry, read_pass(entry, config.job.workers), config.run.target_accuracy)
        for entry in folder.passes
    )
    return Summary(target_accuracy=config.run.target_accuracy, passes=passes)


def summarise_pass(folder: PassFolder, workers: Sequence[WorkerMetrics], target: float) -> PassSummary:
    """One pass from its workers' lines and sums."""
    lines = [line for worker in workers for line in worker.iterations]
    begin = start(workers)
    reached = min((line for line in lines if (line.accuracy or 0.0) >= target), key=_time, default=None)
    finished = first_finishes(workers)
    times = [line.time for line in finished]
    late = tuple(sum(line.late for line in worker.iterations) for worker in workers)
    totals = [worker.totals or Totals() for worker in workers]
    return PassSummary(
        objective=folder.objective,
        time_to_target_s=None if reached is None else reached.time - begin,
        iterations_to_target=None if reached is None else reached.iteration,
        duration_s=max(map(_time, lines)) - begin,
        iterations=finished[-1].iteration,
        best_accuracy=max(line.accuracy or 0.0 for line in lines),
        median_iteration_s=float(np.median(np.diff([begin, *times]))),
        late_contributions=sum(late),
        late_by_worker=late,
        bytes_sent=sum(entry.bytes_sent for entry in totals),
        bytes_received=sum(entry.bytes_received for entry in totals),
        packets_sent=sum(entry.packets_sent for entry in totals),
        packets_received=sum(entry.packets_received for entry in totals),
        retransmissions=sum(entry.retransmissions for entry in totals),
        k_iterations=dict(sorted(Counter(line.k for line in finished).items())),
        identity_error=identity(workers),
        conservation_error=conservation(folder, len(workers)),
    )


def start(workers: Sequence[WorkerMetrics]) -> float:
    """When the first worker began its first iteration, Unix time."""
    starts = (line.started for worker in workers for line in worker.iterations)
    return min(start for start in starts if start is not None)


def first_finishes(workers: Sequence[WorkerMetrics]) -> list[Iteration]:
    """Of every iteration the line of the replica that finished it first, by iteration."""
    first: dict[int, Iteration] = {}
    for worker in workers:
        for line in worker.iterations:
            best = first.setdefault(line.iteration, line)
            if line.time < best.time:
                first[line.iteration] = line
    return [first[iteration] for iteration in sorted(first)]


def _time(line: Iteration) -> float:
    return line.time


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _integer(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _ratio(baseline: PassSummary, entry: PassSummary) -> str:
    if entry.time_to_target_s is None or baseline.time_to_target_s is None:
        return "-"
    return f"{baseline.time_to_target_s / entry.time_to_target_s:.2f}"


def _counts(counts: dict[int, int]) -> str:
    return ", ".join(f"{k} ({count})" for k, count in counts.items())


def _late(entry: PassSummary) -> str:
    return f"{entry.late_contributions:,} ({', '.join(map(str, entry.late_by_worker))})"


def _traffic(size: int, packets: int) -> str:
    return f"{size / 1e6:.1f} MB in {packets:,} packets"
