"""The arms of an experiment: the trials of one contender in one scenario, one for each seed."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from kofn.experiments.statistics import Spread


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    """Trials that differ only in the seed, as rows of the table of trials; at least one row."""

    trials: pd.DataFrame

    def column(self, name: str) -> list[Any]:
        """Return a column's figures, seed by seed; None if a trial lacks the figure."""
        if name not in self.trials:
            return [None] * len(self.trials)
        return [None if value is pd.NA else value for value in self.trials[name].tolist()]

    def fact(self, name: str) -> Any:
        """Return a figure that all trials of the arm share."""
        return self.column(name)[0]

    def known(self, name: str) -> list[Any]:
        """Return a column's figures, without the missing figures."""
        return [value for value in self.column(name) if value is not None]

    def values(self, name: str) -> list[float]:
        """Return the figures of a column about an event. A figure is infinite if its event never came."""
        return [math.inf if value is None else value for value in self.column(name)]

    def spread(self, name: str) -> Spread:
        """Return the spread of `values`."""
        return Spread.of(self.values(name))

    def known_spread(self, name: str) -> Spread | None:
        """Return the spread of the known figures; None without known figures."""
        known = self.known(name)
        return Spread.of(known) if known else None

    def mean(self, name: str) -> float:
        """Return the mean of the known figures; NaN without known figures."""
        known = self.known(name)
        return fmean(known) if known else math.nan

    def pairs(self, other: "Arm", name: str) -> list[tuple[float, float]]:
        """Return this arm's and the other arm's `values` for every seed that both have."""
        theirs = dict(zip(other.seeds, other.values(name), strict=True))
        return [
            (mine, theirs[seed]) for seed, mine in zip(self.seeds, self.values(name), strict=True) if seed in theirs
        ]

    @property
    def seeds(self) -> list[int]:
        return self.column("seed")

    @property
    def reached(self) -> int:
        """The number of trials that reached the target accuracy."""
        return len(self.known("time_to_target_s"))

    @property
    def failures(self) -> list[str]:
        """The faults of the arm's trials, apart from a missed target."""
        columns = (self.column(name) for name in ("identity_error", "conservation_error", "objective_fault"))
        return [error for several in zip(*columns, strict=True) for error in several if error]


def groups(trials: pd.DataFrame, name: str) -> Iterator[pd.DataFrame]:
    """Yield the rows of every value of a column, in order of first occurrence."""
    if len(trials):
        yield from (group for _, group in trials.groupby(name, sort=False))
