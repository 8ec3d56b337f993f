"""A timer for a deadline that moves: the protocol's earliest, on an event loop or in virtual time."""

import math
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """Not any more."""


class Clock(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float:
        """Seconds, monotonic."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call later."""


POSTPONED_S = 1e-3
"""By so much a deadline is later than the one that was set before if that is worth another timer."""


class DeadlineTimer:
    """Calls `ring` once when the deadline that was set last has passed, or up to POSTPONED_S before."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._due = math.inf
        self._timer: Timer | None = None

    def set(self, deadline: float | None, clock: Clock) -> None:
        """Ring at this moment of the clock, or a little before; None: whenever it was, or not at all."""
        if deadline is None or self._due <= deadline < self._due + POSTPONED_S:
            return
        self.cancel()
        self._due, self._timer = deadline, clock.call_at(deadline, self._passed)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = math.inf, None

    def _passed(self) -> None:
        self._due, self._timer = math.inf, None
        self._ring()
