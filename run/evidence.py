"""What an experiment's runs show: figures for each scenario and objective over the seeds, and whether claims hold.

Knows no files: summaries of passes in, numbers and words out.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

from run.summary import PassSummary


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One objective in one scenario, over all seeds; times in seconds."""

    objective: str
    trainings: int
    reached: int
    """How many got to the target accuracy."""
    times_s: tuple[float, ...]
    """To the target, seed by seed."""
    time_s: Spread
    iterations: Spread
    """To the target."""
    best_accuracy: Spread
    owned_accuracy: Spread | None
    """In the end, on the classes that one worker alone holds; None where there are none."""
    measured_s: Spread
    """Mean iteration time."""
    predicted_s: Spread | None
    """The same as predicted; None where that is not known."""
    error: Spread | None
    """(predicted - measured) / measured."""
    failures: tuple[str, ...]
    """What is wrong with a training, other than that it missed the target."""

    @property
    def mean_s(self) -> float:
        """Geometric mean of the times: seeds that take long count no more than others."""
        return math.exp(sum(map(math.log, self.times_s)) / len(self.times_s))

    def against(self, other: "Row") -> float:
        """The median of the seeds' ratios of times: data and blocking are a seed's own; infinite where never there."""
        pairs = zip(self.times_s, other.times_s, strict=True)
        return median(mine / theirs if math.isfinite(mine) else math.inf for mine, theirs in pairs)

    @property
    def k(self) -> int | None:
        """The K of fixed:K; None for what adapts."""
        name, _, number = self.objective.partition(":")
        return int(number) if name == "fixed" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """One scenario."""

    scenario: str
    shifting: bool
    """Whether the workers' blocking changes."""
    stationary: bool
    """Whether neither that does nor a fixed k."""
    workers: int
    target_accuracy: float
    may_miss: bool
    """Whether a training that does not reach the target is a finding here, no failure; with a fixed k it always is."""
    late: str
    """What becomes of late gradients: policy.late."""
    rows: tuple[Row, ...]

    @property
    def fixed(self) -> list[Row]:
        """Those of a fixed k that always reached the target, the fastest first."""
        rows = [row for row in self.rows if row.k is not None and math.isfinite(row.mean_s)]
        return sorted(rows, key=lambda row: row.mean_s)

    @property
    def adaptive(self) -> list[Row]:
        """Those that choose k themselves."""
        return [row for row in self.rows if row.k is None and row.objective != "all"]

    @property
    def everyone(self) -> Row | None:
        """The one that waits for all workers."""
        return next((row for row in self.rows if row.k == self.workers or row.objective == "all"), None)

    def failures(self) -> list[str]:
        """Why the experiment is not as it should be."""
        reasons = [f"{self.scenario}, {row.objective}: {why}" for row in self.rows for why in row.failures]
        missed = [row for row in self.rows if row.reached < row.trainings and not (self.may_miss or row.k)]
        return reasons + [
            f"{self.scenario}, {row.objective}: {row.trainings - row.reached} of {row.trainings} did not reach "
            f"{self.target_accuracy:.1%}"
            for row in missed
        ]


def find_row(objective: str, passes: Sequence[PassSummary]) -> Row:
    """One objective's passes, a seed each; at least one."""
    known = [(entry.predicted_iteration_s, entry.mean_iteration_s) for entry in passes if entry.predicted_iteration_s]
    times_s, iterations = (
        reached(entry.time_to_target_s for entry in passes),
        reached(entry.iterations_to_target for entry in passes),
    )
    return Row(
        objective=objective,
        trainings=len(passes),
        reached=sum(math.isfinite(time_s) for time_s in times_s),
        times_s=tuple(times_s),
        time_s=Spread.of(times_s),
        iterations=Spread.of(iterations),
        best_accuracy=Spread.of([entry.best_accuracy for entry in passes]),
        owned_accuracy=Spread.of_known(entry.owned_accuracy for entry in passes),
        measured_s=Spread.of([entry.mean_iteration_s for entry in passes]),
        predicted_s=Spread.of_known(predicted_s for predicted_s, _ in known),
        error=Spread.of_known(predicted_s / measured_s - 1 for predicted_s, measured_s in known),
        failures=tuple(error for entry in passes for error in entry.broken),
    )


def reached(values: Iterable[float | None]) -> list[float]:
    """What a target took; infinite where it was not reached."""
    return [math.inf if value is None else value for value in values]
