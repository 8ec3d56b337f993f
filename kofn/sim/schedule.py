"""A configuration's actions at iterations, in virtual time."""

from collections.abc import Callable, Iterable
from typing import Generic

from kofn.run.schedule import Timed, in_order
from kofn.sim.clock import VirtualClock


class VirtualSchedule(Generic[Timed]):
    """Calls `act` with each entry once, `after_s` after the iteration `at_iteration` is reached."""

    def __init__(self, clock: VirtualClock, entries: Iterable[Timed], act: Callable[[Timed], object]) -> None:
        self._clock, self._waiting, self._act = clock, in_order(entries), act

    def reached(self, iteration: int) -> None:
        """Schedule the entries of an iteration that is reached, unless they have been scheduled before."""
        while self._waiting and self._waiting[0].at_iteration <= iteration:
            entry = self._waiting.pop(0)
            self._clock.after(self._clock.time() + entry.after_s, self._act, entry)
