"""Virtual time: a heap of what is to happen, one after another; the clock jumps from each to the next."""

import heapq
from collections.abc import Callable
from typing import Any


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
    """Seconds since the beginning; has what host.protocol.deadline_timer.Clock needs of an event loop."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = 0  # of what is to happen at the same moment: as it was asked for
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._ended = False

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Have something happen at this moment, or now if that has passed."""
        handle = Handle(callback, args)
        self.after(when, handle.happen)
        return handle

    def after(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """The same for what is never cancelled, which is nearly everything."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self._now), self._order, callback, args))

    def run(self) -> bool:
        """Let everything happen until end(); False when nothing is left before that."""
        heap = self._heap
        while heap and not self._ended:
            self._now, _, call, args = heapq.heappop(heap)
            call(*args)
        return self._ended

    def end(self) -> None:
        self._ended = True


def _nothing() -> None:
    """What was cancelled."""
