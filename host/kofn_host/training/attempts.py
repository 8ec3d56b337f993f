"""How many gradients a worker computes in an iteration, and when it aborts a gradient, by the rule for late gradients.

This module has no clock and no network: training drives it in real time, the simulation (kofn/sim/) in virtual time.
"""

from kofn_common.config.late_rules import GIVE_UPS, LateRule
from kofn_common.wire.sizes import PARTS


class Attempts:
    """Counts the gradients of each iteration.

    Call begin(), compute a gradient, call tried(); then, while repeats(), call again() and compute another.
    """

    def __init__(self) -> None:
        self.batch = 0
        """The current gradient's number within its iteration, from 0."""
        self._late_in_a_row = 0  # iterations whose first gradient was late

    def begin(self) -> None:
        """Note that an iteration's first gradient begins."""
        self.batch = 0

    def gives_up(self, rule: LateRule) -> bool:
        """Return whether this gradient is aborted once its iteration is over.

        A rule that gives up aborts every gradient.  There is one exception: after GIVE_UPS late iterations in a row, an
        iteration's first gradient is not aborted.
        """
        return rule.gives_up and (self._late_in_a_row < GIVE_UPS or self.batch > 0)

    def tried(self, *, in_time: bool) -> None:
        """Record whether the first gradient was finished in time."""
        self._late_in_a_row = 0 if in_time else self._late_in_a_row + 1

    def repeats(self, rule: LateRule) -> bool:
        """Return whether another gradient may follow in the same iteration (at most PARTS in all)."""
        return rule.repeats and self.batch < PARTS - 1

    def again(self) -> None:
        """Note that another gradient, with the same parameters, begins."""
        self.batch += 1
