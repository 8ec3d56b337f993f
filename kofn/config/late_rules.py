"""What becomes of a gradient whose iteration ended without it: the rules, by name.

    merge       finished; added to the iteration that is open then, but not counted among its k (the source's rule,
                with an age weight of 1: docs/explanation/sources.md)
    async       finished; counts among the k of the iteration that is open then (K-async SGD)
    batch-sync  given up; who has finished goes on with another batch until k gradients are there (K-batch-sync SGD)
    stash       finished; added to the worker's next contribution that is in time
    abort       given up at once
    drop        finished, and thrown away

Who has been cut off GIVE_UPS times in a row finishes the next gradient under every rule, and all others until it is in
time again; they are merged.  So nobody computes for nothing for ever.

K-async and K-batch-sync: S. Dutta et al., Slow and stale gradients can win the race, AISTATS 2018.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

RuleName = Literal["merge", "async", "batch-sync", "stash", "abort", "drop"]

RuleChoice = Literal["auto", RuleName]
"""A rule, or that the objective chooses one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRule:
    """What a worker does.

    `counts`: a late gradient counts among the k.  `keeps`: it waits for the worker's next contribution in time; else it
    is merged at once.  `discards`: nothing of it is used.  `gives_up`: a worker stops computing when its iteration
    is over.  `repeats`: a worker that has contributed computes another gradient with the same parameters.
    """

    name: RuleName
    counts: bool = False
    keeps: bool = False
    discards: bool = False
    gives_up: bool = False
    repeats: bool = False

    @property
    def merges(self) -> bool:
        """Whether what is late goes into the iteration that is open then, or the next one, without being counted."""
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
"""Gradients that a worker gives up in a row, at most."""

DEFAULT: RuleName = "merge"
"""The rule where none is configured or chosen yet: a late gradient enters a sum, and no worker waits for it."""

AGE_WEIGHT = 0.5
"""What each iteration of age leaves of a gradient's weight, likewise."""

LEAST_WEIGHT = 1 / 16
"""Of a late gradient that is finished, as long as it is within policy.age_limit, unless late ones weigh nothing: else
whoever is many times slower than the others would be in no sum."""


def weight_at(age: int, age_weight: float) -> float:
    """What a gradient weighs that is contributed at this age, in iterations."""
    return max(age_weight**age, LEAST_WEIGHT) if age_weight else float(age == 0)


class LatePolicy(NamedTuple):
    """How workers treat late gradients: by which rule, and what each iteration of age leaves of their weight."""

    rule: RuleName = DEFAULT
    age_weight: float = AGE_WEIGHT


assert tuple(RULES) == get_args(RuleName)
