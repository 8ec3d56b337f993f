"""Another machine's clocks against this machine's, by the round trip that took least."""

import time

import msgspec


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """By how much another machine's clocks are ahead of this machine's clocks, in seconds."""

    real_s: float
    monotonic_s: float
    within_s: float
    """Half of the round trip: the offsets are known to be within this of the truth."""


class ClockComparison:
    """Compares clocks over a connection.

    clock = ClockComparison()
    asked = clock.ask()                       # and send the question
    clock.answered(asked, real, monotonic)    # the other machine's clocks, when it had the question
    clock.offset
    """

    def __init__(self) -> None:
        self.offset: Offset | None = None
        self.drift_s = 0.0
        """The largest difference between an offset measured later and the offset in force, beyond both their bounds."""

    def answered(self, asked_s: float, real: float, monotonic: float) -> None:
        """Take an answer to the question of time.monotonic() = `asked_s`."""
        now_s, real_now = time.monotonic(), time.time()
        half = (now_s - asked_s) / 2
        found = Offset(real_s=real - (real_now - half), monotonic_s=monotonic - (now_s - half), within_s=half)
        if self.offset is None or half < self.offset.within_s:
            self.offset = found
        else:
            apart = abs(found.real_s - self.offset.real_s) - found.within_s - self.offset.within_s
            self.drift_s = max(self.drift_s, apart)
