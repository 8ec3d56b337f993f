"""How long to wait for an answer, learnt from how long answers were waited for."""

import math

RTO_MIN_S = 0.003
RTO_MAX_S = 1.0
SOON = 0.25
"""Share of the usual wait: an answer that soon is one to an earlier attempt."""

PATIENCE_MIN_S, PATIENCE_MAX_S = 0.0005, 0.004


class Timeout:
    """Retransmission timeout from smoothed waits and their deviation, as RFC 6298 has it.

    `spare`: share of the usual wait that is added at least, however regular waits are.
    """

    def __init__(self, initial_s: float, *, spare: float = 0.0) -> None:
        self._initial_s, self._spare = initial_s, spare
        self._smoothed_s: float | None = None
        self._deviation_s = 0.0

    def sample(self, wait_s: float) -> None:
        """An answer was waited for so long."""
        if self._smoothed_s is None:
            self._smoothed_s, self._deviation_s = wait_s, wait_s / 2
        else:
            self._deviation_s += (abs(self._smoothed_s - wait_s) - self._deviation_s) / 4
            self._smoothed_s += (wait_s - self._smoothed_s) / 8

    @property
    def rto_s(self) -> float:
        """Nearly all answers are here by then."""
        return self._after(4)

    @property
    def usual_s(self) -> float:
        """Most answers are here by then."""
        return self._after(2)

    def _after(self, deviations: int) -> float:
        """By when an answer is here whose wait is longer by so many deviations."""
        if self._smoothed_s is None:
            return self._initial_s
        spare_s = max(deviations * self._deviation_s, self._spare * self._smoothed_s)
        return min(RTO_MAX_S, max(RTO_MIN_S, self._smoothed_s + spare_s))

    @property
    def soon_s(self) -> float:
        """Hardly any answer is here by then."""
        return 0.0 if self._smoothed_s is None else SOON * self._smoothed_s


class ReorderingWindow:
    """How long an overtaken request is waited for: no longer than packets are ever seen to change places.

    The reordering window of RFC 8985: it grows when a request was sent again in vain (the answer came sooner than any
    can), and shrinks when that was needed.
    """

    def __init__(self) -> None:
        self.window_s = PATIENCE_MIN_S
        self._soonest_s = math.inf

    @property
    def trip_s(self) -> float:
        """An answer for which nobody else is waited for is here by then."""
        return min(RTO_MAX_S, max(RTO_MIN_S, 2 * self._soonest_s))

    def answer(self, since_sent_s: float, *, again: bool) -> None:
        """An answer came so long after its request was sent the last time; `again`: not for the first time."""
        if not again:
            self._soonest_s = min(self._soonest_s, since_sent_s)
        elif since_sent_s < self._soonest_s:
            self.window_s = min(PATIENCE_MAX_S, 2 * self.window_s)
        else:
            self.window_s = max(PATIENCE_MIN_S, 0.9 * self.window_s)
