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


class Alarm:
    """Calls `ring` when the earliest deadline that was set has passed, once: a later one than needed never stays."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._due = math.inf
        self._timer: Timer | None = None

    def set(self, deadline: float | None, clock: Clock) -> None:
        """Ring at this moment of the clock or before; None: there is no deadline."""
        if deadline is None or deadline >= self._due:
            return
        self.cancel()
        self._due, self._timer = deadline, clock.call_at(deadline, self._passed)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = math.inf, None

    def _passed(self) -> None:
        self._due, self._timer = math.inf, None
        self._ring()
