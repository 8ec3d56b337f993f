"""Each contender of a comparison over its seeds, and the rivals that it has in its setting."""

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
        """What it has in common with the others."""
        return self.point.setting

    @property
    def pace(self) -> str:
        """The column that says who is faster: the time to the target where there is one, else of an iteration."""
        return "time_to_target_s" if self.setting.trained else "iteration_s"

    def times_faster(self, other: "ContenderArm | None", name: str) -> Spread | None:
        """The other's time over this one's, seed by seed; 0 where this one never gets there, None without pairs."""
        pairs = self.pairs(other, name) if other else []
        return Spread.of([0.0 if math.isinf(mine) else theirs / mine for mine, theirs in pairs]) if pairs else None

    def problems(self) -> Iterator[str]:
        """Why a run is not as it should be; a fixed k that misses the target is a finding."""
        for trial in groups(self.trials, "seed"):
            one = Arm(trials=trial)
            reasons = one.failures
            if self.setting.trained and not one.reached and self.contender.collective != "fixed":
                reasons.append(f"the target was not reached (best {one.fact('best_accuracy'):.1%})")
            yield from (f"{self.point.name}, seed {one.seeds[0]}: {reason}" for reason in reasons)


Rivals = Mapping[str, ContenderArm]
"""Of one setting, by the contender's name."""


def contender_arms(trials: pd.DataFrame, points: Mapping[str, Point]) -> list[Rivals]:
    """Setting by setting; `points` by scenario, in their order."""
    by_name = {rows["scenario"].iloc[0]: rows for rows in groups(trials, "scenario")}
    found: dict[str, dict[str, ContenderArm]] = {}
    for name, point in points.items():
        if name in by_name:
            arm = ContenderArm(trials=by_name[name], point=point)
            found.setdefault(point.setting.name, {})[point.contender.name] = arm
    return list(found.values())


def setting_of(rivals: Rivals) -> Setting:
    """What they have in common."""
    return next(iter(rivals.values())).setting


def server_of(arm: ContenderArm, rivals: Rivals) -> ContenderArm | None:
    """The parameter server that a contender is compared with: of the same codec, int32 for float32."""
    codec = arm.contender.codec
    return rivals.get(f"server-{'int32' if codec == FLOAT32 else codec}")
