"""The workers whose data is unlike the others', found by the products of gradients and aggregates. No clock, no I/O.

A worker reports the product of its gradient with the previous aggregate, over that aggregate's squared length. Its mean
is the same for all workers whose data is drawn alike. A worker that alone holds some of the data disagrees as long as
its gradients are rarely in a sum: so the worth of a starved worker's data shows there.
"""

from dataclasses import dataclass, field

import numpy as np

from kofn.controller.estimate.measurements import BoolArray, FloatArray

KNOWN = 3
"""Gradients of a worker from which on something can be said."""

SURE = 3.0
"""Standard errors."""

SKEWED = 0.5
"""Share of the usual agreement below which a worker's data is its own."""


@dataclass(slots=True, kw_only=True)
class DataSkew:
    """Marks in `skewed` (workers,) the workers whose data is their own; a mark stays."""

    workers: int
    skewed: BoolArray = field(init=False)
    _count: FloatArray = field(init=False)
    _sum: FloatArray = field(init=False)
    _square: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        self._count, self._sum, self._square = np.zeros((3, self.workers))
        self.skewed = np.zeros(self.workers, np.bool_)

    def add(self, worker: int, agreement: float) -> None:
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
    """Return the median faster than np.median does for a few values: every report asks for it."""
    middle = [(len(values) - 1) // 2, len(values) // 2]
    return float(np.partition(values, middle)[middle].sum() / 2)
