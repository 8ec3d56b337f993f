"""What an experiment compares: the trials of one contender in one scenario, a seed each."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from kofn.experiments.statistics import Spread


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    """Rows of the table of trials that differ in nothing but the seed; at least one."""

    trials: pd.DataFrame

    def column(self, name: str) -> list[Any]:
        """Seed by seed; None where a trial has no such figure."""
        if name not in self.trials:
            return [None] * len(self.trials)
        return [None if value is pd.NA else value for value in self.trials[name].tolist()]

    def fact(self, name: str) -> Any:
        """What its trials have in common."""
        return self.column(name)[0]

    def known(self, name: str) -> list[Any]:
        """As `column`, without those that have none."""
        return [value for value in self.column(name) if value is not None]

    def values(self, name: str) -> list[float]:
        """As `column`, of what may never come: infinite where it did not."""
        return [math.inf if value is None else value for value in self.column(name)]

    def spread(self, name: str) -> Spread:
        """Of `values`."""
        return Spread.of(self.values(name))

    def known_spread(self, name: str) -> Spread | None:
        """Of `known`; None where nothing is."""
        known = self.known(name)
        return Spread.of(known) if known else None

    def mean(self, name: str) -> float:
        """Of `known`; NaN where nothing is."""
        known = self.known(name)
        return fmean(known) if known else math.nan

    def pairs(self, other: "Arm", name: str) -> list[tuple[float, float]]:
        """This one's and the other's `values` of every seed that both have."""
        theirs = dict(zip(other.seeds, other.values(name), strict=True))
        return [
            (mine, theirs[seed]) for seed, mine in zip(self.seeds, self.values(name), strict=True) if seed in theirs
        ]

    @property
    def seeds(self) -> list[int]:
        return self.column("seed")

    @property
    def reached(self) -> int:
        """How many trials got to the target accuracy."""
        return len(self.known("time_to_target_s"))

    @property
    def failures(self) -> list[str]:
        """What is wrong with a trial, other than that it missed the target."""
        columns = (self.column(name) for name in ("identity_error", "conservation_error", "objective_fault"))
        return [error for several in zip(*columns, strict=True) for error in several if error]


def groups(trials: pd.DataFrame, name: str) -> Iterator[pd.DataFrame]:
    """The rows of every value of a column, in the order in which they come first."""
    if len(trials):
        yield from (group for _, group in trials.groupby(name, sort=False))
