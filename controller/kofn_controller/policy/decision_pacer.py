"""Decides when there is time for a decision. It has no clock: times are arguments."""

from dataclasses import dataclass

TICK_S = 0.02
"""Period of the checks for time to decide, and for silent workers."""

QUIET_S = 0.01
"""Time without a report before the model is fitted: at the end of an iteration the workers need the processors."""

UNDECIDED_S = 0.1
"""Longest time that a decision waits for QUIET_S without a report."""

DECISION_SHARE = 0.05
"""Largest share of one processor for decisions."""


@dataclass(slots=True)
class DecisionPacer:
    """Allows decisions between reports, and only after a pause that keeps their share of a processor at
    DECISION_SHARE."""

    _reported_s: float = 0.0
    _latest_s: float = 0.0  # when the pacer last allowed a decision
    _rest_until_s: float = 0.0  # no decision before this time

    def reported(self, now_s: float) -> None:
        """Note that a worker has reported."""
        self._reported_s = now_s

    def now(self, now_s: float) -> bool:
        """Return whether a decision may begin now."""
        if now_s < max(self._rest_until_s, min(self._reported_s + QUIET_S, self._latest_s + UNDECIDED_S)):
            return False
        self._latest_s = now_s
        return True

    def decided(self, begin_s: float, end_s: float) -> None:
        """Note the time that a decision took."""
        self._rest_until_s = end_s + (end_s - begin_s) / DECISION_SHARE
