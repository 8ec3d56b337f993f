"""Means over seeds, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

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
        numbers = np.log(values) if geometric else np.asarray(values, dtype=np.float64)
        mean = float(np.mean(numbers))
        ends: tuple[float, ...] = ()
        if len(numbers) > 1:
            from scipy.special import stdtrit  # noqa: PLC0415  # a tenth of a second, which a single run does not need

            half = float(stdtrit(len(numbers) - 1, (1 + LEVEL) / 2) * np.std(numbers, ddof=1) / math.sqrt(len(numbers)))
            ends = (mean - half, mean + half)
        center, *bounds = map(math.exp, (mean, *ends)) if geometric else (mean, *ends)
        low, high = bounds or (None, None)
        return cls(n=len(values), mean=center, low=low, high=high, values=tuple(values))

    def text(self, form: str, scale: float = 1.0) -> str:
        """Return "12.3 (11.0 to 13.6)"."""
        mean = form.format(scale * self.mean)
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({form.format(scale * self.low)} to {form.format(scale * self.high)})"
