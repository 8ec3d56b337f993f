"""When there is time for a decision.  Pure: times are passed in."""

from dataclasses import dataclass

TICK_S = 0.02
"""How often it is looked whether there is time, and how long workers have been silent."""

QUIET_S = 0.01
"""Time without a report before the model is fitted: at the end of an iteration the workers need the processors."""

UNDECIDED_S = 0.1
"""For how long decisions wait at most for that."""

DECISION_SHARE = 0.05
"""Most of one CPU's time that decisions may take."""


@dataclass(slots=True)
class DecisionPacer:
    """Between reports, where there is one, and when the last decision has left CPU time."""

    _reported_s: float = 0.0
    _latest_s: float = 0.0  # when it was one for the last time
    _rest_until_s: float = 0.0

    def reported(self, now_s: float) -> None:
        """A worker has said something."""
        self._reported_s = now_s

    def now(self, now_s: float) -> bool:
        if now_s < max(self._rest_until_s, min(self._reported_s + QUIET_S, self._latest_s + UNDECIDED_S)):
            return False
        self._latest_s = now_s
        return True

    def decided(self, begin_s: float, end_s: float) -> None:
        """A decision was made, and took so long."""
        self._rest_until_s = end_s + (end_s - begin_s) / DECISION_SHARE
