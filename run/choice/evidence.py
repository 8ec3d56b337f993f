"""What runs show about the choice of rule and k: each training's time against the best fixed rule and k in hindsight.

Knows no files: summaries of passes in, numbers out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean, median

import numpy as np
import numpy.typing as npt

from run.choice.worlds import Kind
from run.objectives import check_objective
from run.spread import Spread, reached
from run.summary import PassSummary

Floats = npt.NDArray[np.float64]

NEVER = 3.0
"""A training that takes so many times as long as the fastest of its seed, or never gets there, counts as this."""

MEDIAN, MEAN = 1.05, 1.15
"""Of the best fixed rule and k in hindsight: a median that is near it, a geometric mean that is not far from it."""

SOON = 80
"""Iterations within which a change that is taken back was none worth making."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One objective in one scenario, over all seeds; times in seconds."""

    objective: str
    trainings: int
    reached: int
    """How many got to the target accuracy."""
    times_s: tuple[float, ...]
    """To the target, seed by seed; infinite where a training never got there."""
    time_s: Spread
    iterations: Spread
    """To the target."""
    best_accuracy: Spread
    owned_accuracy: Spread | None
    """In the end, on the classes that one worker alone holds; None where there are none."""
    least_share: float
    """Of the sums, in times of an equal share: of the worker that has the least, the seeds' mean."""
    measured_s: Spread
    """Mean iteration time."""
    predicted_s: Spread | None
    """The same as predicted; None where that is not known."""
    error: Spread | None
    """(predicted - measured) / measured."""
    changes: float
    """Of rule or k in a training: mean."""
    undone: float
    """Of these, those back to what had been left within SOON iterations: mean."""
    ends_with: str
    """The rule and k that most trainings ended with; empty where nobody decides."""
    failures: tuple[str, ...]
    """What is wrong with a training, other than that it missed the target."""

    @classmethod
    def of(cls, objective: str, passes: Sequence[PassSummary]) -> "Row":
        """One objective's passes, a seed each; at least one."""
        known = [(one.predicted_iteration_s, one.mean_iteration_s) for one in passes if one.predicted_iteration_s]
        times_s = reached(one.time_to_target_s for one in passes)
        shares = [min(one.share_by_worker) * len(one.share_by_worker) for one in passes if one.share_by_worker]
        return cls(
            objective=objective,
            trainings=len(passes),
            reached=sum(map(math.isfinite, times_s)),
            times_s=tuple(times_s),
            time_s=Spread.of(times_s),
            iterations=Spread.of(reached(one.iterations_to_target for one in passes)),
            best_accuracy=Spread.of([one.best_accuracy for one in passes]),
            owned_accuracy=Spread.of_known(one.owned_accuracy for one in passes),
            least_share=fmean(shares) if shares else math.nan,
            measured_s=Spread.of([one.mean_iteration_s for one in passes]),
            predicted_s=Spread.of_known(predicted_s for predicted_s, _ in known),
            error=Spread.of_known(predicted_s / measured_s - 1 for predicted_s, measured_s in known),
            changes=fmean(max(len(one.courses) - 1, 0) for one in passes),
            undone=fmean(_undone(one) for one in passes),
            ends_with=_most_common([f"{one.courses[-1]}" for one in passes if one.courses]),
            failures=tuple(error for one in passes for error in one.broken),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """One scenario: a world with some workers at a learning rate."""

    scenario: str
    world: str
    kind: Kind
    workers: int
    rate: float
    target_accuracy: float
    rows: tuple[Row, ...]

    @property
    def fixed(self) -> list[Row]:
        """Those of which rule and k never change."""
        return [row for row in self.rows if self._is_fixed(row)]

    @property
    def adaptive(self) -> list[Row]:
        """Those that choose."""
        return [row for row in self.rows if not self._is_fixed(row)]

    @property
    def everyone(self) -> Row | None:
        """The one that waits for all workers."""
        return self.row("all")

    def row(self, objective: str) -> Row | None:
        """An objective's; None where it was not run."""
        return next((row for row in self.rows if row.objective == objective), None)

    @property
    def best(self) -> Row | None:
        """The fixed one with the least mean time in hindsight; None where nothing fixed ever got there."""
        known = [row for row in self.fixed if row.reached]
        return min(known, key=lambda row: geometric_mean(self._times(row)), default=None)

    def ratios(self, row: Row) -> "Ratios | None":
        """Its times over those of fixed rules and ks, seed by seed; None where nothing fixed ever got there."""
        if self.best is None:
            return None
        own = self._times(row)
        others = own / self._of_other_seeds() if len(own) > 1 else own[:0]
        return Ratios.of(own / self._times(self.best), others)

    def failures(self) -> list[str]:
        """Why the experiment is not as it should be. That a target is missed is a finding."""
        return [f"{self.scenario}, {row.objective}: {why}" for row in self.rows for why in row.failures]

    def _times(self, row: Row) -> Floats:
        """Seed by seed, as far as NEVER."""
        fastest = np.min([one.times_s for one in self.rows], axis=0)
        return np.asarray(np.minimum(row.times_s, NEVER * np.where(np.isfinite(fastest), fastest, 1.0)))

    def _of_other_seeds(self) -> Floats:
        """Of each seed the time with the fixed rule and k that is the best of all other seeds: nobody's luck."""
        logs = np.log([self._times(row) for row in self.fixed])
        without = logs.sum(axis=1, keepdims=True) - logs
        chosen = np.take_along_axis(logs, without.argmin(axis=0)[None], axis=0)
        return np.asarray(np.exp(chosen[0]))

    def _is_fixed(self, row: Row) -> bool:
        return row.objective == "all" or check_objective(row.objective, self.workers, row.objective) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Of times: to the best fixed rule and k of these seeds, and to the one that is the best of the other seeds."""

    median: float
    mean: float
    """Geometric, as is the next."""
    others: float | None
    """None of a single seed."""

    @classmethod
    def of(cls, ratios: Floats, others: Floats) -> "Ratios":
        """One or more."""
        return cls(
            median=median(ratios),
            mean=geometric_mean(ratios),
            others=geometric_mean(others) if len(others) else None,
        )


def constants(found: Sequence[Findings]) -> Mapping[str, float]:
    """Of every fixed objective that all scenarios have, k in parts of n: the geometric mean of its means."""
    logs: dict[str, list[float]] = {}
    for one in found:
        for name, row in {part(row.objective, one.workers): row for row in one.fixed}.items():
            ratios = one.ratios(row)
            if ratios is not None:
                logs.setdefault(name, []).append(math.log(ratios.mean))
    most = max(map(len, logs.values()), default=0)
    return {name: math.exp(fmean(several)) for name, several in logs.items() if len(several) == most}


def part(objective: str, workers: int) -> str:
    """With k as a part of n: async:2 of eight workers is async:n/4."""
    name, _, number = objective.partition(":")
    k = int(number or workers)
    parts = {workers // 4: "n/4", workers // 2: "n/2", 3 * workers // 4: "3n/4", workers - 1: "n-1"}
    return f"{name}:{parts.get(k, k)}" if number else name


def _undone(entry: PassSummary) -> int:
    """How often a rule and k were taken again soon after they had been left."""
    count = 0
    for at, now in enumerate(entry.courses):
        before = zip(entry.courses[:at], entry.courses[1 : at + 1], strict=True)
        count += any(one.what == now.what and now.iteration - after.iteration <= SOON for one, after in before)
    return count


def _most_common(several: Sequence[str]) -> str:
    return max(sorted(set(several)), key=several.count, default="")
