"""The rules for late gradients and the ks of a trial, and the iterations in which they came into force."""

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
        """Return the objective that sets this rule and k, with the age weight if it is not the default."""
        weight = "" if self.age_weight == AGE_WEIGHT else f" ({self.age_weight:g})"
        return f"{self.late_gradient}:{self.k}{weight}"

    @property
    def what(self) -> tuple[str, float, int]:
        return self.late_gradient, self.age_weight, self.k


def in_force(statuses: Sequence[Status], decisions: Path) -> tuple[InForce, ...]:
    """Return the rule and k at a trial's start, and the rule and k after each later change; empty without statuses."""
    if not statuses:
        return ()
    first = statuses[0]
    decided = [line for line in read_lines(decisions) if "reason" in line and line["job"] == first["job"]]
    several = sorted(map(_parsed, (first, *decided)), key=lambda decision: decision.iteration)
    return tuple(
        now for before, now in zip((None, *several), several, strict=False) if not before or before.what != now.what
    )


def _parsed(line: dict[str, Any]) -> InForce:
    """Return the rule and k of a status or a decision."""
    return InForce(line["iteration"], line["late_gradient"], line["age_weight"], line["k"])
