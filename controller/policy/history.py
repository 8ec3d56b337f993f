"""The history of a training: its latest iterations, as workers report them. No I/O and no clock."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.rpc import kofn_pb2 as pb

ITERATIONS = 256
"""Maximum number of kept iterations; fewer with so many workers that they would need more than CELLS places."""

CELLS = 2**18

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHistory:
    """The latest m iterations that have ended, oldest first, of a job of n workers; no array can be written to."""

    now_s: float  # the controller's clock, as of `ended_s`
    live: BoolArray  # (n,) by rank: whether it takes part; a Forecast is of these alone
    iteration: IntArray  # (m,)
    ended_s: FloatArray  # (m,) when the first worker reported that it had ended
    k: IntArray  # (m,) in force
    arrival_s: FloatArray  # (m, n) from parameters ready to first block sent; NaN: not reported, or it gave up
    late: BoolArray  # (m, n) whether the iteration closed without it; False where it has not reported
    loss: FloatArray  # (m, n) NaN: not reported

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The same: there is nothing to change."""
        return self


@dataclass(slots=True, kw_only=True)
class HistoryLog:
    """Takes reports; a row for each iteration, the oldest one gives its row to the newest."""

    workers: int
    _rows: int = field(init=False)
    _iteration: IntArray = field(init=False)
    _ended_s: FloatArray = field(init=False)
    _k: IntArray = field(init=False)
    _arrival_s: FloatArray = field(init=False)
    _late: BoolArray = field(init=False)
    _loss: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._rows = rows = max(1, min(ITERATIONS, CELLS // self.workers))
        shape = (rows, self.workers)
        self._iteration, self._k = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._ended_s = np.zeros(rows)
        self._arrival_s, self._loss = np.full(shape, np.nan), np.full(shape, np.nan)
        self._late = np.zeros(shape, np.bool_)

    def report(self, rank: int, report: pb.Report, k: int, now_s: float) -> None:
        """A worker's; the first one of an iteration says when that ended.  One older than all rows is forgotten."""
        row = report.iteration % self._rows
        if report.iteration > self._iteration[row]:
            self._iteration[row], self._ended_s[row], self._k[row] = report.iteration, now_s, report.k_most or k
            self._arrival_s[row], self._loss[row], self._late[row] = np.nan, np.nan, False
        if report.iteration == self._iteration[row]:
            self._arrival_s[row, rank] = np.nan if report.censored else report.first_block_s
            self._late[row, rank] = report.late
            if report.HasField("loss"):
                self._loss[row, rank] = report.loss

    def history(self, live: BoolArray, now_s: float) -> TrainingHistory:
        order = np.argsort(self._iteration)
        order = order[self._iteration[order] > 0]
        return TrainingHistory(
            now_s=now_s,
            live=_fixed(live.copy()),
            iteration=_fixed(self._iteration[order]),
            ended_s=_fixed(self._ended_s[order]),
            k=_fixed(self._k[order]),
            arrival_s=_fixed(self._arrival_s[order]),
            late=_fixed(self._late[order]),
            loss=_fixed(self._loss[order]),
        )


def _fixed(array: Any) -> Any:
    array.setflags(write=False)
    return array
