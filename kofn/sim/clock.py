"""Virtual time: what is to happen, one after another; the clock of clock.c jumps from each to the next."""

from collections.abc import Callable
from typing import Any

from kofn.sim.native import Native


class Handle:
    """Something that is to happen, unless it is cancelled."""

    __slots__ = ("_args", "_call")

    def __init__(self, call: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._call, self._args = call, args

    def cancel(self) -> None:
        self._call, self._args = _nothing, ()

    def happen(self) -> None:
        self._call(*self._args)


class VirtualClock:
    """Seconds since the beginning; has what host.transport.timers.Clock needs of an event loop."""

    def __init__(self) -> None:
        self.native = Native("clock")
        self._now = memoryview(self.native.first_fields(1)).cast("B").cast("d")
        self._ask, self._next = self.native.function("call"), self.native.function("next")
        self._calls: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._standing: list[Callable[[], object]] = []
        self._ended = False

    def time(self) -> float:
        now: float = self._now[0]
        return now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Have something happen at this moment, or now if that has passed."""
        handle = Handle(callback, args)
        self.after(when, handle.happen)
        return handle

    def after(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """The same for what is never cancelled, which is nearly everything."""
        self._calls[self._ask(self.native.address, when)] = callback, args

    def number_of(self, callback: Callable[[], object]) -> int:
        """For C, which has this called with it as often as it likes."""
        self._standing.append(callback)
        return -len(self._standing)

    def run(self) -> bool:
        """Let everything happen until end(); False when nothing is left before that."""
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
    """What was cancelled."""
