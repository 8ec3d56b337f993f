"""The contenders of a comparison over their seeds, and the rivals of each contender in its setting."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from kofn.experiments.arms import Arm, groups
from kofn.experiments.compare.points import FLOAT32, Contender, Point, Setting
from kofn.experiments.statistics import Spread


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContenderArm(Arm):
    """A contender in a setting, over its seeds."""

    point: Point

    @property
    def contender(self) -> Contender:
        return self.point.contender

    @property
    def setting(self) -> Setting:
        """The setting that the contender shares with its rivals."""
        return self.point.setting

    @property
    def pace(self) -> str:
        """The column that decides on speed: the time to the target if there is a target, else an iteration's time."""
        return "time_to_target_s" if self.setting.trained else "iteration_s"

    def times_faster(self, other: "ContenderArm | None", name: str) -> Spread | None:
        """Return the other arm's time divided by this arm's time, seed by seed. A seed's ratio is 0 if this arm's event
        never came. Return None without a common seed."""
        pairs = self.pairs(other, name) if other else []
        return Spread.of([0.0 if math.isinf(mine) else theirs / mine for mine, theirs in pairs]) if pairs else None

    def problems(self) -> Iterator[str]:
        """Yield the faults of the arm's runs; a missed target with a fixed k is a finding, not a fault."""
        for trial in groups(self.trials, "seed"):
            run = Arm(trials=trial)
            reasons = run.failures
            if self.setting.trained and not run.reached and self.contender.collective != "fixed":
                reasons.append(f"the target was not reached (best {run.fact('best_accuracy'):.1%})")
            yield from (f"{self.point.name}, seed {run.seeds[0]}: {reason}" for reason in reasons)


Rivals = Mapping[str, ContenderArm]
"""The arms of one setting, by the contender's name."""


def contender_arms(trials: pd.DataFrame, points: Mapping[str, Point]) -> list[Rivals]:
    """Return the arms, setting by setting, in the order of `points`, which are by scenario."""
    by_name = {rows["scenario"].iloc[0]: rows for rows in groups(trials, "scenario")}
    found: dict[str, dict[str, ContenderArm]] = {}
    for name, point in points.items():
        if name in by_name:
            arm = ContenderArm(trials=by_name[name], point=point)
            found.setdefault(point.setting.name, {})[point.contender.name] = arm
    return list(found.values())


def setting_of(rivals: Rivals) -> Setting:
    """Return the setting that rivals share."""
    return next(iter(rivals.values())).setting


def server_of(arm: ContenderArm, rivals: Rivals) -> ContenderArm | None:
    """Return the rival with a parameter server and the contender's codec, or int32 if the contender sends float32."""
    codec = arm.contender.codec
    return rivals.get(f"server-{'int32' if codec == FLOAT32 else codec}")
