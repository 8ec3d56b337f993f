"""The directions of successive aggregates: their products measure the cost of staleness.

The worth of a gradient that is d iterations old depends on how much the direction has changed.  An estimate of this
worth is the mean product of two aggregates d iterations apart, divided by their squared length without noise
(controller/kofn_controller/policy/worth.py).
"""

from dataclasses import dataclass

import numpy as np

from kofn_common.rpc.limits import LAGS
from kofn_host.arrays import Floats
from kofn_host.kernels.sample import MOST, norm2, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """An aggregate's squared length, and its products with the aggregates of 1, 2, ... iterations before."""

    norm2: float
    products: tuple[float, ...]


class Alignment:
    """Samples of the latest LAGS aggregates of `elements` values."""

    def __init__(self, elements: int) -> None:
        self._kept = np.zeros((LAGS, min(elements, MOST)), np.float32)
        self._stride = elements / self._kept.shape[1]
        """The number of elements per sampled element."""
        self._count = 0

    def direction(self, mean: Floats) -> Direction:
        """Add the next aggregate, shape (elements,); return its direction, with the products that are known."""
        looked_at = sample(mean)
        known = min(self._count, LAGS)
        products = self._kept @ looked_at * self._stride
        newest_first = tuple(float(products[(self._count - lag) % LAGS]) for lag in range(1, known + 1))
        self._kept[self._count % LAGS] = looked_at
        self._count += 1
        return Direction(norm2=norm2(looked_at) * self._stride, products=newest_first)

    def agreement(self, gradient: Floats) -> float:
        """Return the product of a gradient (elements,) and the latest aggregate, over the aggregate's squared length.

        A gradient's noise is independent of the aggregate. So the mean agreement over the workers is the share of
        signal in the aggregate. A worker whose data differ from the others' data agrees less. The result is 0 without
        an aggregate.
        """
        return agreement(sample(gradient), self._kept[(self._count - 1) % LAGS]) if self._count else 0.0

    def clear(self) -> None:
        """Forget all aggregates, because some are missing."""
        self._count = 0


def agreement(gradient: Floats, aggregate: Floats) -> float:
    """Return the product of gradient and aggregate over the aggregate's squared length; 0 if that length is 0."""
    length2 = float(np.dot(aggregate, aggregate))
    return float(np.dot(gradient, aggregate)) / length2 if length2 else 0.0
