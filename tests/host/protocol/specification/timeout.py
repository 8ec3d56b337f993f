"""Timeouts learnt from the waits for answers."""

import math

RTO_MIN_S = 0.003
RTO_MAX_S = 1.0
SOON = 0.25
"""Share of the usual wait; an answer within it is one to an earlier attempt."""

PATIENCE_MIN_S, PATIENCE_MAX_S = 0.0005, 0.004


class Timeout:
    """A retransmission timeout from smoothed waits and their deviation (RFC 6298).

    `spare`: the least share of the usual wait to add, however regular the waits are.
    """

    def __init__(self, initial_s: float, *, spare: float = 0.0) -> None:
        self._initial_s, self._spare = initial_s, spare
        self._smoothed_s: float | None = None
        self._deviation_s = 0.0

    def sample(self, wait_s: float) -> None:
        """Learn the wait for an answer."""
        if self._smoothed_s is None:
            self._smoothed_s, self._deviation_s = wait_s, wait_s / 2
        else:
            self._deviation_s += (abs(self._smoothed_s - wait_s) - self._deviation_s) / 4
            self._smoothed_s += (wait_s - self._smoothed_s) / 8

    @property
    def rto_s(self) -> float:
        """The wait within which nearly all answers arrive."""
        return self._after(4)

    @property
    def usual_s(self) -> float:
        """The wait within which most answers arrive."""
        return self._after(2)

    def _after(self, deviations: int) -> float:
        """Return the smoothed wait plus this many deviations, within bounds."""
        if self._smoothed_s is None:
            return self._initial_s
        spare_s = max(deviations * self._deviation_s, self._spare * self._smoothed_s)
        return min(RTO_MAX_S, max(RTO_MIN_S, self._smoothed_s + spare_s))

    @property
    def soon_s(self) -> float:
        """The wait within which hardly any answer arrives."""
        return 0.0 if self._smoothed_s is None else SOON * self._smoothed_s


class ReorderingWindow:
    """The reordering window of RFC 8985: how long an overtaken request is awaited.

    It grows when a retransmission was unnecessary (another packet caused the answer), and shrinks when one was needed.
    """

    def __init__(self) -> None:
        self.window_s = PATIENCE_MIN_S
        self._soonest_s = math.inf

    @property
    def trip_s(self) -> float:
        """The wait within which an answer arrives that needs no other worker."""
        return min(RTO_MAX_S, max(RTO_MIN_S, 2 * self._soonest_s))

    def answer(self, since_sent_s: float) -> None:
        """Learn the time from a request's only sending to its answer."""
        self._soonest_s = min(self._soonest_s, since_sent_s)

    def answer_again(self, since_sent_s: float, *, caused: bool, rto_s: float) -> None:
        """Learn the time from a request's retransmission to its answer.

        `caused`: a retransmitted packet caused the answer. An answer that is sooner than any answer to an only attempt
        cannot belong to the retransmission. The window grows up to `rto_s`, the timeout of an answer, or 4 ms.
        """
        if caused and since_sent_s >= self._soonest_s:
            self.window_s = max(PATIENCE_MIN_S, 0.7 * self.window_s)
        else:
            self.window_s = min(max(PATIENCE_MAX_S, rto_s), 2 * self.window_s)
