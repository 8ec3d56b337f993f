"""The rules for late gradients and the ks of a trial, and since when each was in force."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kofn.report.recoveries import Status, read_lines
from kofn_common.config.late_rules import AGE_WEIGHT


@dataclass(frozen=True, slots=True)
class InForce:
    """A rule and a k, from an iteration on."""

    iteration: int
    """The first iteration."""
    late_gradient: str
    """The rule."""
    age_weight: float
    """The factor on a late gradient's weight for each iteration of its age."""
    k: int
    """Counted contributions that complete a block."""

    def __str__(self) -> str:
        """Return the objective that sets these, with the weight if it is not the default."""
        weight = "" if self.age_weight == AGE_WEIGHT else f" ({self.age_weight:g})"
        return f"{self.late_gradient}:{self.k}{weight}"

    @property
    def what(self) -> tuple[str, float, int]:
        return self.late_gradient, self.age_weight, self.k


def in_force(statuses: Sequence[Status], decisions: Path) -> tuple[InForce, ...]:
    """Return the rule and k at a trial's start, and each one decided later; empty without a controller's statuses."""
    if not statuses:
        return ()
    first = statuses[0]
    decided = [line for line in read_lines(decisions) if "reason" in line and line["job"] == first["job"]]
    several = sorted(map(_in_force, (first, *decided)), key=lambda one: one.iteration)
    return tuple(
        one for before, one in zip((None, *several), several, strict=False) if not before or before.what != one.what
    )


def _in_force(line: dict[str, Any]) -> InForce:
    """Return the values of a status or a decision."""
    return InForce(line["iteration"], line["late_gradient"], line["age_weight"], line["k"])
