"""The variants of `kofn experiment codecs`, over their seeds."""

import math
from dataclasses import dataclass
from statistics import median

import pandas as pd

from kofn.experiments.arms import Arm, groups
from kofn.experiments.codecs.variants import VARIANTS, Variant

ITERATIONS = "iterations_to_target"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VariantArm(Arm):
    """A variant over its seeds."""

    @property
    def variant(self) -> Variant:
        return VARIANTS[self.fact("scenario")]

    def against(self, other: Arm) -> float:
        """Return this arm's iterations to the target divided by the other arm's: the median of the seeds. A seed's
        ratio is infinite if this arm missed the target."""
        pairs = self.pairs(other, ITERATIONS)
        return median([mine / theirs if math.isfinite(mine) else math.inf for mine, theirs in pairs] or [math.inf])

    def shorter(self, other: Arm, name: str) -> float:
        """Return the other arm's time divided by this arm's time: the median of the seeds. A seed's ratio is 0 if the
        event of either arm never came."""
        pairs = self.pairs(other, name)
        known = [theirs / mine if math.isfinite(mine) and math.isfinite(theirs) else 0.0 for mine, theirs in pairs]
        return median(known or [0.0])

    def problems(self) -> list[str]:
        """Return the arm's faults; without error feedback a missed target is a finding, not a fault."""
        name, trainings = self.variant.name, len(self.seeds)
        reasons = [f"{name}: {why}" for why in self.failures]
        if self.variant.error_feedback and self.reached < trainings:
            missed = f"{trainings - self.reached} of {trainings}"
            reasons.append(f"{name}: {missed} did not reach {self.fact('target'):.1%}")
        return reasons


Arms = dict[str, VariantArm]
"""Arms by variant, in the order of VARIANTS."""


def variant_arms(trials: pd.DataFrame) -> Arms:
    found = [VariantArm(trials=rows) for rows in groups(trials, "scenario")]
    by_name = {arm.variant.name: arm for arm in found}
    return {name: by_name[name] for name in VARIANTS if name in by_name}
