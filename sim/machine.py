"""The machine that a run is emulated on: all hosts share its cores, and what they do there takes time."""

from collections.abc import Callable
from heapq import heapreplace
from typing import Any

from kofn.sim.clock import VirtualClock


class Machine:
    """Its cores do one thing after another, in the order in which they are asked; 0: every host has its own."""

    def __init__(self, clock: VirtualClock, cores: int) -> None:
        self._clock = clock
        self._free_s = [0.0] * cores  # when each core is free

    def work(self, duration_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call after so much CPU time."""
        self._clock.after(self._occupy(duration_s), call, *args)

    def spend(self, duration_s: float) -> None:
        """So much CPU time, which nobody waits for."""
        self._occupy(duration_s)

    def _occupy(self, duration_s: float) -> float:
        """When a core that takes this next is done with it."""
        now_s = self._clock.time()
        if not self._free_s:
            return now_s + duration_s
        end_s = max(now_s, self._free_s[0]) + duration_s
        heapreplace(self._free_s, end_s)
        return end_s
