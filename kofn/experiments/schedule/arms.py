"""The contenders of `kofn experiment schedule`, over their seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import pandas as pd

from kofn.experiments.arms import Arm, groups
from kofn.experiments.schedule.contenders import ALL, Contender

TIME = "iteration_s"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContenderArm(Arm):
    """A contender in a setting, over the seeds."""

    @property
    def contender(self) -> Contender:
        return ALL[self.fact("scenario")]

    @property
    def iteration_s(self) -> float:
        return self.spread(TIME).median

    @property
    def predicted_s(self) -> float:
        return self.spread("predicted_s").median

    def against(self, other: Arm) -> float:
        """Return this arm's iteration time divided by the other arm's iteration time: the median of the seeds."""
        return median([mine / theirs for mine, theirs in self.pairs(other, TIME)])


Arms = Mapping[str, Mapping[str, ContenderArm]]
"""Arms by setting, then by the contender's schedule."""


def contender_arms(trials: pd.DataFrame) -> Arms:
    arms: dict[str, dict[str, ContenderArm]] = {}
    for rows in groups(trials, "scenario"):
        arm = ContenderArm(trials=rows)
        arms.setdefault(arm.contender.setting, {})[arm.contender.schedule] = arm
    return arms
