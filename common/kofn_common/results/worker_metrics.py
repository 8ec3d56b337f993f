"""The workers' metrics files as typed values: read whole, read as they grow, or merged into one file.

host/ writes the files: one JSON object for each iteration, one {"logged": ...} for each call of a script's log(), and
{"summary": ...} at the end. A worker that was killed and restarted continues the same file, which then has one summary
for each process that was not killed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Self

import msgspec

from kofn_common.config.schema import Config
from kofn_common.json_text import json_text
from kofn_common.results.account import Account
from kofn_common.results.errors import ResultsError
from kofn_common.results.event_log import killed_for_good, never_started, read_event_log
from kofn_common.results.folder import RunFolder, TrialFolder
from kofn_common.results.json_lines import decoded
from kofn_common.results.memory import Memory
from kofn_common.results.tail import LineTail

TIME_PARTS = ("compute_s", "encode_s", "send_s", "wait_s", "receive_s", "sum_s", "decode_s", "step_s")
"""Fields that a worker's time is split into. If several iterations were applied at once, the line of the first
iteration has the times of all."""


CLOSED = "closed"
"""The reason (Totals.reason) of a worker whose script left the job before the last iteration."""


class TimelineEntry(msgspec.Struct, frozen=True, array_like=True):
    """One layer's pass or transfer, with its begin and end in seconds since the start of the iteration."""

    what: str  # forward, error, weight, wait or transfer
    layer: str  # the name of the layer
    begin_s: float
    end_s: float


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration as one worker saw it; times in seconds, clocks in Unix time.

    A worker that catches up over an iteration computes no gradient: it has no start, no loss and no first block.
    """

    iteration: int  # counted from 1
    started: float | None = None  # when the worker had its parameters
    time: float  # when the worker had applied the iteration's sum
    computed: bool = True  # whether the worker finished a gradient of the iteration
    loss: float | None = None  # loss of the worker's batch
    accuracy: float | None = None  # none if not evaluated (run.evaluate_every)
    owned_accuracy: float | None = None  # accuracy on the classes that only one worker has; none without [[shard]]
    params: str  # digest of the parameters after the iteration
    first_block_s: float | None = None  # from `started` until the first block left, or the gradient was given up
    iteration_s: float | None = None  # from `started` to `time`
    blocking_s: float | None = None  # the blocking that was drawn for the computation of the gradient
    blocked_s: float | None = None  # computing time beyond model.compute_ms; also of a gradient that was given up
    compute_s: float | None = (
        None  # gradients and blocking; compute_s to step_s add up to the time since the previous line with them
    )
    encode_s: float | None = None  # values to lanes; encode_s to decode_s are parts of kofn_host.stopwatch.Times
    send_s: float | None = None  # handing packets to the kernel
    wait_s: float | None = None  # waiting for other workers, links, switch, server, pacer or threads
    receive_s: float | None = None  # taking packets from the kernel
    sum_s: float | None = None  # adding other workers' values; 0 if another machine sums
    decode_s: float | None = None  # lanes to values
    step_s: float | None = None  # updating and evaluating the parameters
    gradient_norm2: float | None = None  # sum of squares of the worker's gradient
    aggregate_norm2: float | None = None  # sum of squares of the average that the worker applied
    age: int | None = None  # age of the worker's gradient when it was contributed, in iterations
    account: Account | None = None  # account of all the worker's gradients up to this iteration
    injected_mean_s: float = 0.0  # mean of the distribution that blocking is drawn from
    width: int | None = None  # bits of the planned lanes; width to misfits describe the worker's contribution
    blocks: int | None = None  # planned blocks
    ratio: float | None = None  # planned share of the float32 gradient's bytes
    wire_bytes: int | None = None  # bytes of all values sent, with retransmissions
    wire_ratio: float | None = None  # wire_bytes, as a share of the float32 gradient's bytes
    error_norm: float | None = None  # L2 norm of the encoding error of the sent values
    residual_norm: float | None = None  # L2 norm of all pending values after the iteration
    refused_width: int | None = None  # bits of lanes that the ratio asked for, but whose error was too large; else none
    refused_error: float | None = None  # expected error of lanes of refused_width, as a share of the squared norm
    rate_ratio: float | None = None  # ratio c at the first rate that took effect within this iteration; else none
    lost_norm: float | None = None  # L2 norm of what rounding residuals to fewer bits lost; none with exact residuals
    expanding: float | None = None  # share of blocks with too large a quantisation step for votes to shrink residuals
    misfits: float | None = None  # share of the gradient's elements that became 0, or that 32-bit lanes clipped
    schedule: str | None = None  # family:threshold in elements:number of front layers; none without [schedule]
    timeline: tuple[TimelineEntry, ...] | None = (
        None  # passes and transfers from this loss to the next; none without [schedule]
    )
    k: int  # the switch's k when the sum was completed
    count: int  # counted contributions in the sum
    members: str = "0x0"  # the workers in the sum: bit r for rank r
    late: bool = False  # whether this worker's gradient was late, or was given up because it would have been late


def bitmap_of(ranks: Iterable[int]) -> str:
    """
    >>> bitmap_of([0, 1, 4])
    '0x13'
    """
    return hex(sum(1 << rank for rank in ranks))


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a worker's trial, over the worker's processes that were not killed."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    retransmissions: int = 0
    checksum_errors: int = 0  # packets that arrived corrupted
    other_generation: int = 0  # packets of an earlier generation of the slots
    peer_fetches: int = 0  # requests to peers for results
    resyncs: int = 0  # times that the worker took over a peer's whole state
    regroups: int = 0
    wire_bytes: int = 0  # bytes of the values in the worker's contributions
    reason: str = ""
    account: Account | None = None  # account of all the worker's gradients at the end
    memory: Memory | None = None  # memory of arrays that the worker kept between two iterations

    def plus(self, other: Self) -> Self:
        """Return the sums of both; reason, account and memory are those of the later `other`."""
        numbers = {name: getattr(self, name) + getattr(other, name) for name in _NUMBERS}
        return msgspec.structs.replace(self, **numbers, reason=other.reason, account=other.account, memory=other.memory)


_NUMBERS = [name for name in Totals.__struct_fields__ if name not in ("reason", "account", "memory")]


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A script's own numbers, from session.log()."""

    iteration: int  # the newest iteration whose mean was in the parameters; 0: none
    time: float  # when the numbers were logged, Unix time
    logged: dict[str, float | None]  # the numbers by name; none if a number is not finite


class MetricsLine(msgspec.Struct, frozen=True):
    """Tells the kinds of lines apart: an iteration's line has neither field."""

    summary: Totals | None = None
    logged: dict[str, float | None] | None = None


_LINE = msgspec.json.Decoder(MetricsLine)
_LOGGED = msgspec.json.Decoder(Logged)
_ITERATION = msgspec.json.Decoder(Iteration)


def _decode(line: bytes) -> Iteration | Logged | Totals:
    kind = _LINE.decode(line)
    return kind.summary or (_ITERATION if kind.logged is None else _LOGGED).decode(line)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """Everything one worker wrote in one trial, in its order."""

    rank: int
    iterations: tuple[Iteration, ...]
    totals: Totals | None
    """Sums over the worker's processes that were not killed; None if all were killed."""
    logged: tuple[Logged, ...] = ()


class Tail(LineTail):
    """Reads the lines appended to a metrics file since the last read; the file may not exist yet."""

    def read(self) -> Iterator[Iteration | Logged | Totals]:
        """Yield every complete new line; an incomplete line waits for the next read."""
        return decoded(self.lines(), _decode, self.path)


def read_worker(folder: TrialFolder, rank: int) -> WorkerMetrics:
    """Read a worker's whole file, which may be missing."""
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
    """Read all workers' files of one trial, by rank; ResultsError if a worker has no iteration and no event explains
    this."""
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
    """Read the files of a trial that did not end; empty if no worker had begun and ended an iteration."""
    metrics = tuple(read_worker(folder, rank) for rank in range(workers))
    return metrics if any(line.started is not None for worker in metrics for line in worker.iterations) else ()


def merge(folder: RunFolder, configs: Sequence[Config]) -> Path:
    """Write metrics.jsonl: every line of every worker with its "trial", "job" and "worker"."""
    path = folder.path / "metrics.jsonl"
    with path.open("w") as out:
        for job, config in zip(folder.jobs, configs, strict=True):
            for entry, rank in product(job.trials, range(config.job.workers)):
                place = {"trial": entry.objective, "job": job.id, "worker": rank}
                begun = json_text(place).removesuffix("}")
                out.writelines(f"{begun}, {line.removeprefix('{')}" for line in _objects(entry.metrics(rank)))
    return path


def _objects(path: Path) -> Iterable[str]:
    """Yield the complete lines with an object."""
    if path.exists():
        with path.open() as lines:
            yield from (line for line in lines if line.startswith("{") and line.endswith("}\n"))
