"""Finds the workers whose data differs from the others', by products of gradients and aggregates. No clock, no I/O.

A worker reports its *agreement*: the product of its gradient with the previous aggregate, divided by that aggregate's
squared length. The mean agreement is the same for all workers whose data has the same distribution. A worker with data
that no other worker has agrees less while its gradients are rarely in a sum.
"""

from dataclasses import dataclass, field

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, FloatArray

KNOWN = 3
"""Gradients that a worker must have reported before the worker is compared with the others."""

SURE = 3.0
"""Standard errors by which a worker's mean agreement must be below the limit."""

SKEWED = 0.5
"""The limit, as a share of the median agreement."""


@dataclass(slots=True, kw_only=True)
class DataSkew:
    """Marks in `skewed` (workers,) the workers whose data differs from the others'; a mark stays."""

    workers: int
    skewed: BoolArray = field(init=False)
    _count: FloatArray = field(init=False)
    _sum: FloatArray = field(init=False)
    _square: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._count, self._sum, self._square = np.zeros((3, self.workers))
        self.skewed = np.zeros(self.workers, np.bool_)

    def add(self, worker: int, agreement: float) -> None:
        """Take the agreement of one gradient, and mark workers whose mean is surely low."""
        self._count[worker] += 1
        self._sum[worker] += agreement
        self._square[worker] += agreement**2
        known = self._count >= KNOWN
        if known.sum() < 2:
            return
        count = np.maximum(self._count, 1)
        mean = self._sum / count
        squares = np.maximum(self._square - count * mean**2, 0.0)
        variance = squares[known].sum() / (self._count[known] - 1).sum()
        usual = _median(mean[known])
        self.skewed |= known & (mean + SURE * np.sqrt(variance / count) < SKEWED * usual)


def _median(values: FloatArray) -> float:
    """Return the median. Faster than np.median for few values; every report needs it."""
    middle = [(len(values) - 1) // 2, len(values) // 2]
    return float(np.partition(values, middle)[middle].sum() / 2)
