"""What a gradient weighs that is some iterations old (config.late_rules.weight_at), and nothing beyond an age limit.

The age of a gradient is how many updates the parameters have had since its computation began.  A weight is a whole
number of 1 / WEIGHT_UNIT, so that ledger and sums stay exact.
"""

from dataclasses import dataclass, replace

from kofn.config.late_rules import RULES, LatePolicy, weight_at
from kofn.host.wire.packet import WEIGHT_UNIT

FOR_EVER = 1 << 32
"""No age limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgeWeight:
    """`weight`: what each iteration of age leaves of a gradient, 0 to 1; `limit`: the largest age that a sum takes."""

    weight: float = 1.0
    limit: int = FOR_EVER

    def at(self, age: int) -> int:
        """Of a gradient of this age, in 1 / WEIGHT_UNIT.

        >>> [AgeWeight(weight=0.5, limit=3).at(age) for age in range(5)]
        [256, 128, 64, 32, 0]
        """
        return round(WEIGHT_UNIT * weight_at(age, self.weight)) if age <= self.limit else 0

    def under(self, policy: LatePolicy) -> "AgeWeight":
        """Return the weights under another policy, with the same limit; a rule that discards leaves nothing."""
        return replace(self, weight=0.0 if RULES[policy.rule].discards else policy.age_weight)

    @property
    def per_iteration(self) -> int:
        """The share, in 1 / WEIGHT_UNIT, that an iteration leaves of what waits, until the oldest gradient is too old.

        There is no least weight here: what a worker keeps for long would add up.
        """
        return round(WEIGHT_UNIT * self.weight)


NOTHING_FADES = AgeWeight()
