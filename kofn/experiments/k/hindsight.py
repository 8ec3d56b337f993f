"""Hindsight on the choice of rule and k: each objective's times against the best fixed choice."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, geometric_mean, median
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from kofn.experiments.arms import Arm, groups
from kofn.experiments.statistics import Spread
from kofn_common.config.objectives import check_objective

Floats = npt.NDArray[np.float64]

TIME = "time_to_target_s"

NEVER = 3.0
"""The longest time that counts, divided by the seed's fastest time. A training that misses the target counts with the
longest time."""

MEDIAN, MEAN = 1.05, 1.15
"""The permitted median and geometric mean, over the seeds, of an objective's time divided by the time of the best fixed
rule and k in hindsight."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Hindsight:
    """All objectives, on the same seeds, in a scenario: a world with a number of workers and a learning rate."""

    arms: tuple[Arm, ...]

    @property
    def scenario(self) -> str:
        return str(self.fact("scenario"))

    def fact(self, name: str) -> Any:
        """Return the value of a column that all trials of the scenario share."""
        return self.arms[0].fact(name)

    @property
    def workers(self) -> int:
        return int(self.fact("workers"))

    @cached_property
    def standings(self) -> "list[Standing]":
        return [Standing(trials=arm.trials, among=self) for arm in self.arms]

    def standing(self, objective: str) -> "Standing | None":
        """Return an objective's standing; None if the objective was not run."""
        return next((standing for standing in self.standings if standing.objective == objective), None)

    @property
    def adaptive(self) -> "list[Standing]":
        return [standing for standing in self.standings if not standing.fixed]

    @cached_property
    def fixed(self) -> "list[Standing]":
        """The standings whose rule and k never change."""
        return [standing for standing in self.standings if standing.fixed]

    @cached_property
    def best(self) -> "Standing | None":
        """The fixed standing with the least mean time; None if no fixed standing reached the target."""
        known = [standing for standing in self.fixed if standing.reached]
        return min(known, key=lambda standing: geometric_mean(standing.times), default=None)

    @cached_property
    def longest(self) -> Floats:
        """The longest time that counts, seed by seed."""
        fastest = np.min([arm.values(TIME) for arm in self.arms], axis=0)
        return np.asarray(NEVER * np.where(np.isfinite(fastest), fastest, 1.0))

    @cached_property
    def of_other_seeds(self) -> Floats:
        """Seed by seed, the time of the fixed rule and k that is best for all other seeds: this excludes luck."""
        logs = np.log([standing.times for standing in self.fixed])
        without = logs.sum(axis=1, keepdims=True) - logs
        chosen = np.take_along_axis(logs, without.argmin(axis=0)[None], axis=0)
        return np.asarray(np.exp(chosen[0]))


def hindsights(trials: pd.DataFrame) -> list[Hindsight]:
    return [
        Hindsight(arms=tuple(Arm(trials=rows) for rows in groups(scenario, "objective")))
        for scenario in groups(trials, "scenario")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Ratios of an objective's times to other times: to the times of the best fixed rule and k, and to the times of the
    rule and k that is the best for the other seeds."""

    median: float
    mean: float
    """The geometric mean of the ratios to the best fixed rule and k."""
    others: float | None
    """The geometric mean of the ratios to the best of the other seeds; None for a single seed."""

    @classmethod
    def of(cls, ratios: Floats, others: Floats) -> Self:
        return cls(
            median=median(ratios),
            mean=geometric_mean(ratios),
            others=geometric_mean(others) if len(others) else None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Standing(Arm):
    """An objective's trials in a scenario, among the trials of all objectives of the scenario."""

    among: Hindsight

    @property
    def objective(self) -> str:
        return str(self.fact("objective"))

    @property
    def fixed(self) -> bool:
        """Whether rule and k never change."""
        name = self.objective
        return name == "all" or check_objective(name, self.among.workers, name) is not None

    @cached_property
    def times(self) -> Floats:
        """Seconds to the target, seed by seed, but at most the longest time that counts in the scenario."""
        return np.asarray(np.minimum(self.values(TIME), self.among.longest))

    @property
    def time(self) -> Spread:
        return self.spread(TIME)

    @cached_property
    def ratios(self) -> Ratios | None:
        """The objective's times divided by the times of fixed rules and ks; None if no fixed rule and k reached the
        target."""
        if self.among.best is None:
            return None
        own = self.times
        others = own / self.among.of_other_seeds if len(own) > 1 else own[:0]
        return Ratios.of(own / self.among.best.times, others)

    @property
    def faster(self) -> float | None:
        """The speed-up over waiting for all; None if it is unknown."""
        everyone, own = self.among.standing("all"), self.ratios
        waiting = everyone and everyone.ratios
        return None if not waiting or own is None else waiting.mean / own.mean

    @property
    def ends_with(self) -> str:
        """The rule and k that most trainings ended with; empty without a choice."""
        several = self.known("ends_with")
        return max(sorted(set(several)), key=several.count, default="")

    @property
    def part(self) -> str:
        """The objective with k as a part of n: with eight workers, async:2 is async:n/4."""
        workers = self.among.workers
        name, _, number = self.objective.partition(":")
        k = int(number or workers)
        parts = {workers // 4: "n/4", workers // 2: "n/2", 3 * workers // 4: "3n/4", workers - 1: "n-1"}
        return f"{name}:{parts.get(k, k)}" if number else name


def constants(found: Iterable[Hindsight]) -> Mapping[str, float]:
    """Return the geometric mean of each fixed objective's ratios over all scenarios, by the objective with k as a part
    of n. Objectives that a scenario lacks are left out."""
    logs: dict[str, list[float]] = {}
    for hindsight in found:
        for name, standing in {standing.part: standing for standing in hindsight.fixed}.items():
            if (ratios := standing.ratios) is not None:
                logs.setdefault(name, []).append(math.log(ratios.mean))
    most = max(map(len, logs.values()), default=0)
    return {name: math.exp(fmean(several)) for name, several in logs.items() if len(several) == most}


def standings(found: Iterable[Hindsight], objective: str) -> list[Standing]:
    """Return the standings of an objective, in every scenario that has it."""
    return [standing for hindsight in found if (standing := hindsight.standing(objective))]


def failures(found: Iterable[Hindsight]) -> list[str]:
    """Return the faults of the trainings; a missed target is a finding, not a fault."""
    several = [standing for hindsight in found for standing in hindsight.standings]
    return [
        f"{standing.among.scenario}, {standing.objective}: {why}" for standing in several for why in standing.failures
    ]
