"""Means over seeds, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The mean of `n` values and its 95 % interval, whose bounds are None for a single value.

    If all values are above 0, the mean is geometric, and the interval is Student's t interval of the logarithms. So
    bounds are above 0, and the mean of ratios is the ratio of the means. Otherwise mean and interval are arithmetic.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return the interval; None without values."""
        if not values:
            return None
        geometric = min(values) > 0
        there = np.log(values) if geometric else np.asarray(values, dtype=np.float64)
        mean, half = float(np.mean(there)), math.nan
        if len(there) > 1:
            half = float(stdtrit(len(there) - 1, (1 + LEVEL) / 2) * np.std(there, ddof=1) / math.sqrt(len(there)))
        center, low, high = (math.exp(value) if geometric else value for value in (mean, mean - half, mean + half))
        known = len(values) > 1
        return cls(
            n=len(values),
            mean=center,
            low=low if known else None,
            high=high if known else None,
            values=tuple(values),
        )

    def text(self, form: str, scale: float = 1.0) -> str:
        """Return "12.3 (11.0 to 13.6)"."""
        mean = form.format(scale * self.mean)
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({form.format(scale * self.low)} to {form.format(scale * self.high)})"
