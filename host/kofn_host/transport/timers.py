"""Interfaces of a clock with timers: an event loop, or virtual time."""

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A pending callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """A clock with callbacks, such as an event loop."""

    def time(self) -> float:
        """Return monotonic seconds."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback` at the time `when`."""
