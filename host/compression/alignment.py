"""How the aggregates of successive iterations point: their products, from which the price of staleness is measured.

A gradient that is d iterations old is worth what is left of its direction.  The aggregates show it: the mean product of
two that are d iterations apart, over their squared length, noise taken off (controller/policy/worth.py).
"""

from dataclasses import dataclass

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.kernels.sample import MOST, norm2, sample

LAGS = 16
"""Iterations back to which products are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Of an aggregate: its squared length, and its products with those of 1, 2, ... iterations before."""

    norm2: float
    products: tuple[float, ...]


class Alignment:
    """The latest LAGS aggregates of `elements` values, of which a sample is kept."""

    def __init__(self, elements: int) -> None:
        self._kept = np.zeros((LAGS, min(elements, MOST)), np.float32)
        self._each = elements / self._kept.shape[1]
        """How many elements each of those that are looked at stands for."""
        self._count = 0

    def direction(self, mean: Floats) -> Direction:
        """Of the next aggregate, shape (elements,); products with those before that are known."""
        looked_at = sample(mean)
        known = min(self._count, LAGS)
        products = self._kept @ looked_at * self._each
        newest_first = tuple(float(products[(self._count - lag) % LAGS]) for lag in range(1, known + 1))
        self._kept[self._count % LAGS] = looked_at
        self._count += 1
        return Direction(norm2=norm2(looked_at) * self._each, products=newest_first)

    def agreement(self, gradient: Floats) -> float:
        """Of a gradient, shape (elements,), with the latest aggregate: product over its squared length; 0: unknown.

        A gradient's noise is independent of the aggregate. So the mean agreement over the workers is the share of the
        aggregate that is signal. A worker with data of its own has less.
        """
        return agreement(sample(gradient), self._kept[(self._count - 1) % LAGS]) if self._count else 0.0

    def clear(self) -> None:
        """Some aggregates are missing: begin anew."""
        self._count = 0


def agreement(gradient: Floats, aggregate: Floats) -> float:
    """Their product over the aggregate's squared length; 0 where that has none."""
    length2 = float(np.dot(aggregate, aggregate))
    return float(np.dot(gradient, aggregate)) / length2 if length2 else 0.0
