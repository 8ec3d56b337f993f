"""Keeps the latest iterations of a training, as workers report them. No I/O and no clock."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.reports import Reports

ITERATIONS = 256
"""Maximum number of kept iterations; fewer if the number of iterations times workers would exceed CELLS."""

CELLS = 2**18

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingHistory:
    """The latest m iterations that have ended, oldest first, of a job of n workers. The arrays are read-only."""

    now_s: float  # present time by the controller's clock, which `ended_s` uses as well
    live: BoolArray  # (n,) by rank: whether the worker takes part; a Forecast covers only these
    iteration: IntArray  # (m,)
    ended_s: FloatArray  # (m,) when the first worker reported the end
    k: IntArray  # (m,) the k in force
    arrival_s: FloatArray  # (m, n) from parameters ready to first block sent; NaN: not reported, or given up
    late: BoolArray  # (m, n) whether the iteration closed without the worker; False if not reported
    loss: FloatArray  # (m, n) NaN: not reported

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same object, because it is read-only."""
        return self


@dataclass(slots=True, kw_only=True)
class HistoryLog:
    """Collects reports in a ring of rows, one for each iteration."""

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
        """Take a worker's report. An iteration ends at the time of its first report. A report older than all rows is
        ignored."""
        row = report.iteration % self._rows
        if report.iteration > self._iteration[row]:
            self._iteration[row], self._ended_s[row], self._k[row] = report.iteration, now_s, report.k_most or k
            self._arrival_s[row], self._loss[row], self._late[row] = np.nan, np.nan, False
        if report.iteration == self._iteration[row]:
            self._arrival_s[row, rank] = np.nan if report.censored else report.first_block_s
            self._late[row, rank] = report.late
            if report.HasField("loss"):
                self._loss[row, rank] = report.loss

    def take(self, reports: Reports, k: int) -> None:
        """Take the reports of several workers. The latest iteration ends with the last of these reports."""
        latest = int(reports.iteration.max(initial=0))
        row = latest % self._rows
        if latest > self._iteration[row]:
            self._iteration[row], self._ended_s[row], self._k[row] = latest, reports.now_s.max(), k
            self._arrival_s[row], self._loss[row], self._late[row] = np.nan, np.nan, False
        rows = reports.iteration % self._rows
        kept = reports.iteration == self._iteration[rows]
        place = rows[kept], reports.rank[kept]
        self._arrival_s[place] = np.where(reports.censored, np.nan, reports.first_block_s)[kept]
        self._late[place] = reports.late[kept]

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
