"""The simulated machine of a run: all hosts share its cores, and their work takes time (network.c)."""

from collections.abc import Callable
from typing import Any

from kofn.sim.clock import VirtualClock
from kofn.sim.native import Native


class Machine:
    """Cores that carry out work in the order of the requests; 0 cores: every host has a separate core."""

    def __init__(self, clock: VirtualClock, cores: int) -> None:
        self.clock = clock
        self.native = Native("machine", clock.native.address, cores, keeps=clock)

    def work(self, duration_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call `call` after `duration_s` of CPU time."""
        self.clock.after(self.spend(duration_s), call, *args)

    def spend(self, duration_s: float) -> float:
        """Use CPU time, and return the time at which the work is done."""
        done_s: float = self.native.call("spend", duration_s)
        return done_s
