"""The workers' metrics files as typed values: read whole, read as they grow, or merged into one file.

The files are written by host/: one JSON object an iteration, and a last one {"summary": ...}.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from run.errors import RunError
from run.folder import PassFolder, RunFolder


class Iteration(msgspec.Struct, frozen=True, kw_only=True):
    """One iteration as one worker saw it; times in seconds, clocks in Unix time.

    A worker that fast-forwards over an iteration did not compute it: no start, no loss, no first block.
    """

    iteration: int
    started: float | None = None
    time: float
    computed: bool = True
    loss: float | None = None
    accuracy: float | None = None
    params: str
    first_block_s: float | None = None
    iteration_s: float | None = None
    blocking_s: float | None = None
    injected_mean_s: float = 0.0
    k: int
    count: int
    members: tuple[int, ...] = ()
    late: bool = False


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's whole pass."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    retransmissions: int = 0
    reason: str = ""


class Line(msgspec.Struct, frozen=True):
    """Tells the last line from the others."""

    summary: Totals | None = None


_LINE = msgspec.json.Decoder(Line)
_ITERATION = msgspec.json.Decoder(Iteration)


def parse(line: bytes, source: Path) -> Iteration | Totals:
    """One line of a metrics file; RunError names the file."""
    try:
        return _LINE.decode(line).summary or _ITERATION.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise RunError(f"{source}: not a line of worker metrics: {error}: {line[:80]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """Everything one worker wrote in one pass, in iteration order."""

    rank: int
    iterations: tuple[Iteration, ...]
    totals: Totals | None


class Tail:
    """Reads what was appended to a metrics file since the last time; the file may not exist yet."""

    def __init__(self, path: Path) -> None:
        """Nothing is opened before the first read."""
        self.path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self) -> Iterator[Iteration | Totals]:
        """Every complete new line; an unfinished one waits for the next read."""
        for line in self._lines():
            yield parse(line, self.path)

    def _lines(self) -> list[bytes]:
        if self._file is None:
            if not self.path.exists():
                return []
            self._file = self.path.open("rb")
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [line for line in lines if line.strip()]

    def close(self) -> None:
        """Close the file if it was opened."""
        if self._file is not None:
            self._file.close()


def read_worker(folder: PassFolder, rank: int) -> WorkerMetrics:
    """A worker's whole file; RunError if there is none or no iteration in it."""
    tail = Tail(folder.metrics(rank))
    try:
        lines = list(tail.read())
    finally:
        tail.close()
    iterations = tuple(line for line in lines if isinstance(line, Iteration))
    if not iterations:
        raise RunError(f"{folder.metrics(rank)}: worker {rank} wrote no iteration; see {folder.log(f'worker-{rank}')}")
    totals = next((line for line in lines if isinstance(line, Totals)), None)
    return WorkerMetrics(rank=rank, iterations=iterations, totals=totals)


def read_pass(folder: PassFolder, workers: int) -> tuple[WorkerMetrics, ...]:
    """All workers' files of one pass, by rank."""
    return tuple(read_worker(folder, rank) for rank in range(workers))


def merge(folder: RunFolder, workers: int) -> Path:
    """Write metrics.jsonl: every line of every worker with its "pass" and "worker"."""
    path = folder.path / "metrics.jsonl"
    with path.open("w") as out:
        for entry in folder.passes:
            for rank in range(workers):
                for line in _objects(entry.metrics(rank)):
                    out.write(json.dumps({"pass": entry.objective, "worker": rank, **line}) + "\n")
    return path


def _objects(path: Path) -> Iterable[dict[str, Any]]:
    if path.exists():
        with path.open() as lines:
            yield from (json.loads(line) for line in lines if line.endswith("\n") and line.strip())
