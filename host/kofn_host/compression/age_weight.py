"""The weight of a gradient by its age (config.late_rules.weight_at), with an age limit.

A gradient's age is the number of updates since its computation began.  A weight is a multiple of 1 / WEIGHT_UNIT, so
that ledger and sums stay exact.
"""

from dataclasses import dataclass, replace

from kofn_common.config.late_rules import RULES, LatePolicy, weight_at
from kofn_common.wire.sizes import WEIGHT_UNIT

FOR_EVER = 1 << 32
"""No age limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeWeight:
    """The weights of gradients by their age.

    `weight`: the share of a gradient that remains after each iteration of age, 0 to 1; `limit`: the largest age of a
    gradient in a sum, in iterations.
    """

    weight: float = 1.0
    limit: int = FOR_EVER

    def at(self, age: int) -> int:
        """Return the weight of a gradient of this age, in 1 / WEIGHT_UNIT.

        >>> [AgeWeight(weight=0.5, limit=3).at(age) for age in range(5)]
        [256, 128, 64, 32, 0]
        """
        return round(WEIGHT_UNIT * weight_at(age, self.weight)) if age <= self.limit else 0

    def under(self, policy: LatePolicy) -> "AgeWeight":
        """Return the weights under another policy, with the same limit; the weight is 0 if the rule discards."""
        return replace(self, weight=0.0 if RULES[policy.rule].discards else policy.age_weight)

    @property
    def per_iteration(self) -> int:
        """The share of waiting gradients, in 1 / WEIGHT_UNIT, that remains after an iteration, up to the age limit.

        Unlike at(), this share sets no lower bound to a weight: with a lower bound, long-kept gradients would
        accumulate.
        """
        return round(WEIGHT_UNIT * self.weight)


NOTHING_FADES = AgeWeight()
