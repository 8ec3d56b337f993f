"""Virtual time: the clock of clock.c keeps coming events in order, and jumps from event to event."""

from collections.abc import Callable
from typing import Any

from kofn.sim import structs
from kofn.sim.native import Native


class Handle:
    """An event that can be cancelled."""

    __slots__ = ("_args", "_call")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._call, self._args = call, args

    def cancel(self) -> None:
        self._call, self._args = _nothing, ()

    def happen(self) -> None:
        self._call(*self._args)


class VirtualClock:
    """The virtual time in seconds since the simulation's beginning. The class has the methods of an event loop that
    host.transport.timers.Clock needs."""

    def __init__(self) -> None:
        self.native = Native("clock")
        self._state = self.native.fields(structs.Clock)
        self._ask, self._next = self.native.function("call"), self.native.function("next")
        self._calls: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._standing: list[Callable[[], object]] = []
        self._ended = False

    def time(self) -> float:
        return self._state.now_s

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Schedule a call for the time `when`, or for now if `when` has passed."""
        handle = Handle(callback, args)
        self.after(when, handle.happen)
        return handle

    def after(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a call that cannot be cancelled. Nearly all calls are scheduled by this method."""
        self._calls[self._ask(self.native.address, when)] = callback, args

    def number_of(self, callback: Callable[[], object]) -> int:
        """Return a number for `callback`. C code can have `callback` called by this number, any number of times."""
        self._standing.append(callback)
        return -len(self._standing)

    def run(self) -> bool:
        """Run events until end() is called. Return False when no event is left and end() was not called."""
        address, happen, calls, standing = self.native.address, self._next, self._calls, self._standing
        while not self._ended and (number := happen(address)):
            if number < 0:
                standing[-number - 1]()
            else:
                call, args = calls.pop(number)
                call(*args)
        return self._ended

    def end(self) -> None:
        self._ended = True


def _nothing() -> None:
    """Do nothing, in place of a cancelled call."""
