"""A figure of several runs of the same experiment."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and most of a figure over the seeds; infinite where a training never got there."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one or more."""
        return cls(median=median(values), low=min(values), high=max(values))

    @classmethod
    def of_known(cls, values: Iterable[float | None]) -> Self | None:
        """Of those that are not None; None where none is known."""
        known = [value for value in values if value is not None]
        return cls.of(known) if known else None


def reached(values: Iterable[float | None]) -> list[float]:
    """What a target took; infinite where it was not reached."""
    return [math.inf if value is None else value for value in values]
