"""What is needed of a clock with timers: an event loop's, or one of virtual time."""

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
