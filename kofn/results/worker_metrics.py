"""The workers' metrics files as typed values: read whole, read as they grow, or merged into one file.

The files are written by host/: one JSON object an iteration, one {"logged": ...} for each time that a script logs
numbers, and a last one {"summary": ...}.  A worker that was killed and started again goes on in the same file: there is
a summary of every process that came to its end.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Self

import msgspec

from kofn.config.schema import Config
from kofn.results.account import Account
from kofn.results.errors import ResultsError
from kofn.results.event_log import killed_for_good, never_started, read_event_log
from kofn.results.folder import RunFolder, TrialFolder
from kofn.results.memory import Memory
from kofn.results.tail import LineTail

TIME_PARTS = ("compute_s", "encode_s", "send_s", "wait_s", "receive_s", "sum_s", "decode_s", "step_s")
"""Fields of an iteration that its time is split into."""


CLOSED = "closed"
"""Why a worker ended (Totals.reason): its script left the job while iterations were still to come."""


class TimelineEntry(msgspec.Struct, frozen=True, array_like=True):
    """Seconds since the start of the iteration in which one layer's pass or transfer began and ended."""

    what: str  # forward, error, weight, wait or transfer
    layer: str  # its name
    begin_s: float
    end_s: float


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration as one worker saw it; times in seconds, clocks in Unix time.

    A worker that fast-forwards over an iteration did not compute it: no start, no loss, no first block.
    """

    iteration: int  # counted from 1
    started: float | None = None  # when the worker had its parameters
    time: float  # when the worker had applied its sum
    computed: bool = True  # whether the worker began a gradient in it
    loss: float | None = None  # of its batch
    accuracy: float | None = None  # none where it was not evaluated (run.evaluate_every)
    owned_accuracy: float | None = None  # on the classes that one worker alone holds; none without [[shard]]
    params: str  # digest of the parameters after it
    first_block_s: float | None = None  # from the start until the gradient's first block left, or it was given up
    iteration_s: float | None = None  # from start to time
    blocking_s: float | None = None  # injected in the computing of the gradient, as it was drawn
    blocked_s: float | None = None  # as it was measured, also of a gradient that it gave up: beyond model.compute_ms
    compute_s: float | None = None  # gradient and blocking; this and the next seven are all of the time
    encode_s: float | None = None  # values to lanes; this and the next five: host.stopwatch.Times
    send_s: float | None = None  # handing packets to the kernel
    wait_s: float | None = None  # nothing to do
    receive_s: float | None = None  # taking packets from the kernel
    sum_s: float | None = None  # adding, where workers sum
    decode_s: float | None = None  # lanes to values
    step_s: float | None = None  # the update of the parameters, and their evaluation
    gradient_norm2: float | None = None  # sum of squares of its gradient
    aggregate_norm2: float | None = None  # of the average that it applied
    age: int | None = None  # of its gradient, in iterations, when it was contributed
    account: Account | None = None  # of all its gradients up to this one
    injected_mean_s: float = 0.0  # mean that blocking is drawn with
    width: int | None = (
        None  # bits of the planned lanes; this and what follows: of its contribution (docs/explanation/compression.md)
    )
    blocks: int | None = None  # that were planned
    ratio: float | None = None  # of the float32 gradient's bytes, as the plan asked for
    wire_bytes: int | None = None  # of values that were sent, again and again where need was
    wire_ratio: float | None = None  # their share of the float32 gradient's
    error_norm: float | None = None  # L2 of what encoding left over in what was sent
    residual_norm: float | None = None  # L2 of all that is pending after the iteration
    refused_width: int | None = None  # bits of narrower lanes that the ratio asked for; None where lanes are as asked
    refused_error: float | None = None  # share of the squared norm that these were expected to leave over: too much
    rate_ratio: float | None = None  # c, when the first rate of this iteration counted; none where none did
    lost_norm: float | None = None  # L2 of what it discarded to keep residuals in fewer bits; none where they are exact
    expanding: float | None = None  # share of blocks whose step is too large for a vote's residual to shrink
    misfits: float | None = None  # share of its gradient's elements that became 0, or that lanes of 32 bits clipped
    schedule: str | None = None  # in force: family:threshold in elements:front layers; none without [schedule]
    timeline: tuple[TimelineEntry, ...] | None = (
        None  # of passes and transfers, likewise; from its loss to the next one's
    )
    k: int  # in force when the sum was completed
    count: int  # contributions that counted in it
    members: tuple[int, ...] = ()  # ranks of all workers in the sum
    late: bool = False  # whether this worker's gradient came when it was complete


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's whole trial, as far as its process lived to tell."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    retransmissions: int = 0
    checksum_errors: int = 0  # packets that were corrupted on their way to it
    other_generation: int = 0  # packets of an earlier generation of the slots
    peer_fetches: int = 0  # times that it asked peers for results
    resyncs: int = 0  # times that it took a peer's whole state
    regroups: int = 0
    wire_bytes: int = 0  # of the values in its contributions
    reason: str = ""
    account: Account | None = None  # of all its gradients, in the end
    memory: Memory | None = None  # of arrays that it kept between two iterations

    def plus(self, other: Self) -> Self:
        """Both together; reason, account and memory are the later one's."""
        numbers = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        return msgspec.structs.replace(self, **numbers, reason=other.reason, account=other.account, memory=other.memory)


_NUMBERS = [name for name in Totals.__struct_fields__ if name not in ("reason", "account", "memory")]


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a script's own, as it gave them to session.log()."""

    iteration: int  # the newest whose mean was in the parameters; 0: none
    time: float  # when they were logged, Unix time
    logged: dict[str, float | None]  # by name; none where a number is not finite


class MetricsLine(msgspec.Struct, frozen=True):
    """Tells the kinds of lines apart: an iteration's has neither."""

    summary: Totals | None = None
    logged: dict[str, float | None] | None = None


_LINE = msgspec.json.Decoder(MetricsLine)
_LOGGED = msgspec.json.Decoder(Logged)
_ITERATION = msgspec.json.Decoder(Iteration)


def parse(line: bytes, source: Path) -> Iteration | Logged | Totals:
    """Return one line of a metrics file; ResultsError names the file."""
    try:
        kind = _LINE.decode(line)
        return kind.summary or (_ITERATION if kind.logged is None else _LOGGED).decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ResultsError(f"{source}: not a line of worker metrics: {error}: {line[:80]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """Everything one worker wrote in one trial, in its order."""

    rank: int
    iterations: tuple[Iteration, ...]
    totals: Totals | None
    """Sums over its processes that came to their end; None where none did."""
    logged: tuple[Logged, ...] = ()


class Tail(LineTail):
    """Reads what was appended to a metrics file since the last time; the file may not exist yet."""

    def read(self) -> Iterator[Iteration | Logged | Totals]:
        """Every complete new line; an unfinished one waits for the next read."""
        for line in self.lines():
            yield parse(line, self.path)


def read_worker(folder: TrialFolder, rank: int) -> WorkerMetrics:
    """A worker's whole file, which may be missing."""
    tail = Tail(folder.metrics(rank))
    try:
        lines = list(tail.read())
    finally:
        tail.close()
    totals = None
    for line in lines:
        if isinstance(line, Totals):
            totals = line if totals is None else totals.plus(line)
    iterations = tuple(line for line in lines if isinstance(line, Iteration))
    logged = tuple(line for line in lines if isinstance(line, Logged))
    return WorkerMetrics(rank=rank, iterations=iterations, totals=totals, logged=logged)


def last_logged(workers: Iterable[Mapping[str, float | None]]) -> dict[str, float]:
    """Return the mean of each number over the workers that have it.

    >>> last_logged([{"top-1": 0.5, "loss": 2.0}, {"top-1": 0.75, "loss": None}, {}])
    {'top-1': 0.625, 'loss': 2.0}
    """
    found: dict[str, list[float]] = {}
    for worker in workers:
        for name, value in worker.items():
            if value is not None:
                found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def read_trial(folder: TrialFolder, workers: int) -> tuple[WorkerMetrics, ...]:
    """All workers' files of one trial, by rank; ResultsError names one without an iteration that no event explains."""
    events = read_event_log(folder.events)
    excused = killed_for_good(events) | never_started(events)
    metrics = tuple(read_worker(folder, rank) for rank in range(workers))
    for worker in metrics:
        name = f"worker-{worker.rank}"
        if not worker.iterations and name not in excused:
            raise ResultsError(
                f"{folder.metrics(worker.rank)}: worker {worker.rank} wrote no iteration; see {folder.log(name)}"
            )
    if not any(worker.iterations for worker in metrics):
        raise ResultsError(f"{folder.path}: no worker wrote an iteration; see {folder.path / 'logs'}")
    return metrics


def read_begun(folder: TrialFolder, workers: int) -> tuple[WorkerMetrics, ...]:
    """As read_trial() of a trial that did not end; empty where no worker had begun and ended an iteration."""
    metrics = tuple(read_worker(folder, rank) for rank in range(workers))
    return metrics if any(line.started is not None for worker in metrics for line in worker.iterations) else ()


def merge(folder: RunFolder, configs: Sequence[Config]) -> Path:
    """Write metrics.jsonl: every line of every worker with its "trial", "job" and "worker"."""
    path = folder.path / "metrics.jsonl"
    with path.open("w") as out:
        for job, config in zip(folder.jobs, configs, strict=True):
            for entry, rank in product(job.trials, range(config.job.workers)):
                place = {"trial": entry.objective, "job": job.id, "worker": rank}
                begun = json.dumps(place).removesuffix("}")
                out.writelines(f"{begun}, {line.removeprefix('{')}" for line in _objects(entry.metrics(rank)))
    return path


def _objects(path: Path) -> Iterable[str]:
    """The lines that are whole, each an object."""
    if path.exists():
        with path.open() as lines:
            yield from (line for line in lines if line.startswith("{") and line.endswith("}\n"))
