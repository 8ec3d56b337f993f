"""Interfaces of a clock with timers: an event loop, or virtual time."""

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that will be called."""

    def cancel(self) -> None:
        """Not any more."""


class Clock(Protocol):
    """A clock that calls back; an event loop is one."""

    def time(self) -> float:
        """Seconds, monotonic."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call later."""
