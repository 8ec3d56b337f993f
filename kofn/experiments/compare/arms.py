"""Each contender of a comparison over its seeds, and its rivals in the same setting."""

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
        """The setting that it shares with its rivals."""
        return self.point.setting

    @property
    def pace(self) -> str:
        """The column that decides on speed: the time to the target if there is one, else of an iteration."""
        return "time_to_target_s" if self.setting.trained else "iteration_s"

    def times_faster(self, other: "ContenderArm | None", name: str) -> Spread | None:
        """Return the other's time over this one's, seed by seed; 0 where this one never gets there,
        None without pairs."""
        pairs = self.pairs(other, name) if other else []
        return Spread.of([0.0 if math.isinf(mine) else theirs / mine for mine, theirs in pairs]) if pairs else None

    def problems(self) -> Iterator[str]:
        """Yield the faults of its runs; a missed target with a fixed k is a finding."""
        for trial in groups(self.trials, "seed"):
            one = Arm(trials=trial)
            reasons = one.failures
            if self.setting.trained and not one.reached and self.contender.collective != "fixed":
                reasons.append(f"the target was not reached (best {one.fact('best_accuracy'):.1%})")
            yield from (f"{self.point.name}, seed {one.seeds[0]}: {reason}" for reason in reasons)


Rivals = Mapping[str, ContenderArm]
"""The arms of one setting, by the contender's name."""


def contender_arms(trials: pd.DataFrame, points: Mapping[str, Point]) -> list[Rivals]:
    """Return the arms, setting by setting; `points` by scenario, in their order."""
    by_name = {rows["scenario"].iloc[0]: rows for rows in groups(trials, "scenario")}
    found: dict[str, dict[str, ContenderArm]] = {}
    for name, point in points.items():
        if name in by_name:
            arm = ContenderArm(trials=by_name[name], point=point)
            found.setdefault(point.setting.name, {})[point.contender.name] = arm
    return list(found.values())


def setting_of(rivals: Rivals) -> Setting:
    """Return the setting that they share."""
    return next(iter(rivals.values())).setting


def server_of(arm: ContenderArm, rivals: Rivals) -> ContenderArm | None:
    """Return the parameter server that is a contender's rival: with the same codec, int32 for float32."""
    codec = arm.contender.codec
    return rivals.get(f"server-{'int32' if codec == FLOAT32 else codec}")
