"""Geometric means over seeds, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The geometric mean of `n` values and its 95 % interval, whose bounds are None for a single value.

    The interval is Student's t interval of the logarithms. So bounds are above 0, and the mean of ratios is the ratio
    of the means.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Return the interval; None without values, or if a value is not above 0."""
        if not values or min(values) <= 0:
            return None
        logs = np.log(values)
        mean, low, high = float(np.mean(logs)), None, None
        if len(logs) > 1:
            from scipy.special import stdtrit  # noqa: PLC0415  # a tenth of a second, which a single run does not need

            half = float(stdtrit(len(logs) - 1, (1 + LEVEL) / 2) * np.std(logs, ddof=1) / math.sqrt(len(logs)))
            low, high = math.exp(mean - half), math.exp(mean + half)
        return cls(n=len(values), mean=math.exp(mean), low=low, high=high, values=tuple(values))

    def text(self, form: str, scale: float = 1.0) -> str:
        """Return "12.3 (11.0 to 13.6)"."""
        mean = form.format(scale * self.mean)
        if self.low is None or self.high is None:
            return mean
        return f"{mean} ({form.format(scale * self.low)} to {form.format(scale * self.high)})"
