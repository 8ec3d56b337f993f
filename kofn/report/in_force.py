"""Which rule for late gradients and which k were in force in a trial, and since when."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kofn.config.late_rules import AGE_WEIGHT
from kofn.report.recoveries import Status, read_lines


@dataclass(frozen=True, slots=True)
class InForce:
    """From an iteration on."""

    iteration: int
    """The first one."""
    late_gradient: str
    """The rule."""
    age_weight: float
    """What each iteration of age leaves of a late gradient's weight."""
    k: int
    """Counted contributions that complete a block."""

    def __str__(self) -> str:
        """As an objective has it; the weight, where it is not the usual one."""
        weight = "" if self.age_weight == AGE_WEIGHT else f" ({self.age_weight:g})"
        return f"{self.late_gradient}:{self.k}{weight}"

    @property
    def what(self) -> tuple[str, float, int]:
        return self.late_gradient, self.age_weight, self.k


def in_force(statuses: Sequence[Status], decisions: Path) -> tuple[InForce, ...]:
    """The one that a trial began with, and each one that was decided; empty where nobody decides."""
    if not statuses:
        return ()
    first = statuses[0]
    decided = [line for line in read_lines(decisions) if "reason" in line and line["job"] == first["job"]]
    several = sorted(map(_in_force, (first, *decided)), key=lambda one: one.iteration)
    return tuple(
        one for before, one in zip((None, *several), several, strict=False) if not before or before.what != one.what
    )


def _in_force(line: dict[str, Any]) -> InForce:
    """What a status or a decision says."""
    return InForce(line["iteration"], line["late_gradient"], line["age_weight"], line["k"])
