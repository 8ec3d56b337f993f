"""Measured blocking times from a file, model.trace.

The file has CSV lines `iteration,rank,blocking_ms`, with or without a header line of these names; or each line is a
JSON object with these names.  A worker is not blocked in an iteration for which it has no line.  All gradients of an
iteration are blocked alike.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats64
from kofn_host.workload.straggler_source import StragglerSource, Together

FIELDS = ("iteration", "rank", "blocking_ms")


class BlockingTrace(StragglerSource):
    """One worker's blocking times from a trace; ConfigError as in read_trace()."""

    def __init__(self, config: Config, rank: int) -> None:
        super().__init__(config, rank)
        self._blocking_s = read_trace(config.model.trace or "")

    def mean_s(self, iteration: int) -> float:
        """Return the blocking of the file, which is not random."""
        return self.blocking_s(iteration)

    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        """Return the blocking, the same for all gradients of an iteration."""
        return self._blocking_s.get((iteration, self.rank), 0.0)

    @classmethod
    def together(cls, config: Config, seeds: Sequence[int]) -> Together:
        return _TraceTogether(config)

    @classmethod
    def check(cls, config: Config) -> None:
        """Raise ConfigError as read_trace() does, and for a rank outside of the job."""
        if config.model.trace is None:
            raise ConfigError("model.trace must be given with model.stragglers = 'trace': a file of blocking times")
        ranks = {rank for _, rank in read_trace(config.model.trace)}
        if unknown := sorted(rank for rank in ranks if not 0 <= rank < config.job.workers):
            raise ConfigError(
                f"ranks of {config.model.trace} must be 0 to {config.job.workers - 1} (job.workers - 1), got"
                f" {unknown[0]}"
            )


class _TraceTogether:
    """All workers' blocking times from a trace, which is the same for all seeds."""

    def __init__(self, config: Config) -> None:
        self._compute_s = np.full((1, config.job.workers), config.model.compute_ms / 1000)
        found = sorted(read_trace(config.model.trace or "").items())
        self._iterations, self._ranks = (np.array([place[at] for place, _ in found], np.int64) for at in (0, 1))
        self._blocking_s = np.array([time_s for _, time_s in found])

    def compute_s(self, iteration: int) -> Floats64:
        return self._compute_s

    def blocking_s(self, iteration: int, begun_s: Floats64, batch: int = 0) -> Floats64:
        lines = slice(*np.searchsorted(self._iterations, (iteration, iteration + 1)))
        found = np.zeros(begun_s.shape)
        found[:, self._ranks[lines]] = self._blocking_s[lines]
        return found


def write_trace(path: Path, blocked_s: Mapping[tuple[int, int], float]) -> None:
    """Write a file for read_trace(), to a microsecond; `blocked_s`: seconds by iteration and rank."""
    lines = [f"{iteration},{rank},{1e3 * blocked_s[iteration, rank]:.3f}" for iteration, rank in sorted(blocked_s)]
    path.write_text("\n".join([",".join(FIELDS), *lines]) + "\n")


@lru_cache(maxsize=4)
def read_trace(path: str) -> dict[tuple[int, int], float]:
    """Return seconds by iteration and rank; ConfigError names the file and the wrong line."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a trace: {error}") from error
    return dict(_entries(path, lines))


def _entries(path: str, lines: list[str]) -> Iterator[tuple[tuple[int, int], float]]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and tuple(name.strip() for name in line.split(",")) == FIELDS):
            continue
        try:
            iteration, rank, blocking_ms = _fields(line)
            if not 0 <= float(blocking_ms) < float("inf"):
                raise ValueError
            yield (int(iteration), int(rank)), float(blocking_ms) / 1000
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path}, line {number}: must be {','.join(FIELDS)}, or a JSON object with these, got {line[:80]!r}"
            ) from None


def _fields(line: str) -> list[str]:
    if line.lstrip().startswith("{"):
        found = json.loads(line)
        return [str(found[name]) for name in FIELDS]
    return next(csv.reader([line]))


trace = BlockingTrace
