"""How long to wait for an answer, learnt from how long answers took."""

RTO_MIN_S = 0.01
RTO_MAX_S = 1.0


class Timeout:
    """Retransmission timeout from smoothed answer times, as RFC 6298 has it."""

    def __init__(self, initial_s: float) -> None:
        self.rto_s = initial_s
        self._smoothed_s: float | None = None
        self._deviation_s = 0.0

    def sample(self, answer_s: float) -> None:
        """One answer time."""
        if self._smoothed_s is None:
            self._smoothed_s, self._deviation_s = answer_s, answer_s / 2
        else:
            self._deviation_s += (abs(self._smoothed_s - answer_s) - self._deviation_s) / 4
            self._smoothed_s += (answer_s - self._smoothed_s) / 8
        self.rto_s = min(RTO_MAX_S, max(RTO_MIN_S, self._smoothed_s + 4 * self._deviation_s))
