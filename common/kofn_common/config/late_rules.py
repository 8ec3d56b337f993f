"""The rules for a late gradient, whose iteration ended without it, by name.

    merge       finished; added to the open iteration, but not counted among its k (document 003's rule,
                with an age weight of 1: docs/explanation/sources.md)
    async       finished; counts among the k of the open iteration (K-async SGD)
    batch-sync  given up; finished workers continue with another batch until k gradients are there (K-batch-sync SGD)
    stash       finished; added to the worker's next contribution that is in time
    abort       given up at once
    drop        finished, and discarded

A worker that has given up GIVE_UPS gradients in a row finishes every gradient, under every rule, until it is in time
again. These gradients are merged. So no worker computes in vain for ever.

K-async and K-batch-sync: S. Dutta et al., Slow and stale gradients can win the race, AISTATS 2018.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

RuleName = Literal["merge", "async", "batch-sync", "stash", "abort", "drop"]

RuleChoice = Literal["auto", RuleName]
"""A rule, or "auto": the objective chooses one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRule:
    """A worker's treatment of its late gradients.

    `counts`: a late gradient counts among the k. `keeps`: a late gradient waits for the worker's next contribution in
    time; else it is merged at once. `discards`: no part of a late gradient is used. `gives_up`: a worker stops
    computing when its iteration is over. `repeats`: a worker that has contributed computes another gradient with the
    same parameters.
    """

    name: RuleName
    counts: bool = False
    keeps: bool = False
    discards: bool = False
    gives_up: bool = False
    repeats: bool = False

    @property
    def merges(self) -> bool:
        """Whether a late gradient enters the open iteration, or the next one, without being counted."""
        return not (self.keeps or self.discards)


RULES: dict[str, LateRule] = {
    "merge": LateRule(name="merge"),
    "async": LateRule(name="async", counts=True),
    "batch-sync": LateRule(name="batch-sync", gives_up=True, repeats=True),
    "stash": LateRule(name="stash", keeps=True),
    "abort": LateRule(name="abort", gives_up=True),
    "drop": LateRule(name="drop", discards=True),
}

GIVE_UPS = 3
"""The most gradients in a row that a worker gives up."""

DEFAULT: RuleName = "merge"
"""The rule before one is configured or chosen: a late gradient enters a sum, and no worker waits for it."""

AGE_WEIGHT = 0.5
"""The factor of a gradient's weight for each iteration of age, by default."""

LEAST_WEIGHT = 1 / 16
"""The least weight of a late gradient within policy.age_limit, unless late gradients weigh nothing. Without this bound,
a worker that is many times slower than the others would be in no sum."""


def weight_at(age: int, age_weight: float) -> float:
    """Return the weight of a gradient that is contributed at this age, in iterations."""
    return max(age_weight**age, LEAST_WEIGHT) if age_weight else float(age == 0)


class LatePolicy(NamedTuple):
    """The workers' treatment of late gradients: a rule, and the factor of their weight for each iteration of age."""

    rule: RuleName = DEFAULT
    age_weight: float = AGE_WEIGHT


assert tuple(RULES) == get_args(RuleName)
