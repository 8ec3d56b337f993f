"""The gradients that a worker computes in one iteration, by the rule for late gradients.

This module has no clock and no network: a training drives it in real time, kofn/sim/ in virtual time.
"""

from kofn.config.late_rules import GIVE_UPS, LateRule
from kofn.host.wire.packet import PARTS


class Attempts:
    """The gradients of one iteration: begin(), compute one, tried() after the first one, again() while repeats()."""

    def __init__(self) -> None:
        self.batch = 0
        """The current gradient's number within its iteration."""
        self._cut_off = 0  # consecutive iterations whose first gradient was late

    def begin(self) -> None:
        """Compute the iteration's first gradient."""
        self.batch = 0

    def gives_up(self, rule: LateRule) -> bool:
        """Return whether the gradient is aborted once its iteration is over; after the first one it always is."""
        return rule.gives_up and (self._cut_off < GIVE_UPS or self.batch > 0)

    def tried(self, *, in_time: bool) -> None:
        """Note whether the first gradient was finished before its iteration was over."""
        self._cut_off = 0 if in_time else self._cut_off + 1

    def repeats(self, rule: LateRule) -> bool:
        """Return whether another gradient follows this one, as long as the iteration lasts."""
        return rule.repeats and self.batch < PARTS - 1

    def again(self) -> None:
        """Compute another gradient with the same parameters."""
        self.batch += 1
