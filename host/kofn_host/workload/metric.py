"""The metric of a training: a number, its direction, and the target."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric; `target`: the value at which a training ends, unless run.target sets another value.

    >>> error = Metric(name="error", better="lower", target=0.1)
    >>> error.reached(0.2), error.reached(0.1), error.reached(None), error.best([0.3, None, 0.2])
    (False, True, False, 0.2)
    >>> error.text(0.12345), ACCURACY.text(0.95), ACCURACY.goal
    ('0.1235', '95.0%', '95.0% accuracy')
    """

    name: str
    target: float
    better: Literal["higher", "lower"] = "higher"
    percent: bool = False  # a share, 0 to 1: shown in per cent

    def reached(self, value: float | None) -> bool:
        """Return whether a value reaches the target; None and NaN do not."""
        if value is None:
            return False
        return value >= self.target if self.better == "higher" else value <= self.target

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best of the known values; None if none is known."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        return (max if self.better == "higher" else min)(known, default=None)

    def text(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.1%}" if self.percent else f"{value:.4g}"

    @property
    def goal(self) -> str:
        """The target with its name."""
        return f"{self.text(self.target)} {self.name}"


ACCURACY = Metric(name="accuracy", target=0.95, percent=True)
