"""Figures over several trials of the same kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and greatest value of a figure over the seeds; infinite if the event of the figure never came."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        return cls(median=median(values), low=min(values), high=max(values))
