"""Means over seeds, with their intervals of 95 %."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import stats

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean of `n` values, and where it lies with a probability of 95 % (Student's t); None: one value has no bounds.

    Seeds are taken for a sample of independent, normally distributed values.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """None without a value."""
        if not values:
            return None
        mean = float(np.mean(values))
        if len(values) < 2:
            return cls(n=1, mean=mean, low=None, high=None, values=tuple(values))
        half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
        return cls(n=len(values), mean=mean, low=mean - half, high=mean + half, values=tuple(values))

    @classmethod
    def of_ratios(cls, ratios: Sequence[float]) -> Self | None:
        """The geometric mean, whose interval is that of the logarithms."""
        logs = cls.of([math.log(ratio) for ratio in ratios])
        if logs is None:
            return None
        low, high = (None if bound is None else math.exp(bound) for bound in (logs.low, logs.high))
        return cls(n=logs.n, mean=math.exp(logs.mean), low=low, high=high, values=tuple(ratios))

    def text(self, form: str, scale: float = 1.0) -> str:
        """ "12.3 (11.0 to 13.6)"."""
        mean = form.format(scale * self.mean)
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({form.format(scale * self.low)} to {form.format(scale * self.high)})"
