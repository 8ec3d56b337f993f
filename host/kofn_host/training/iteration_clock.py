"""The division of a training's time into the parts that metrics lines have (results.worker_metrics.TIME_PARTS)."""

import time
from typing import get_args

from kofn_common.results.worker_metrics import TIME_PARTS
from kofn_host.stopwatch import Part, Times, within_wait


class IterationClock:
    """Counts every moment of a training in exactly one part, however often an iteration computes and exchanges.

    A method that ends a part counts the time since the end of the part before it.
    """

    def __init__(self) -> None:
        self._spent_s = dict.fromkeys(TIME_PARTS, 0.0)
        self._since_s = time.monotonic()

    def computed(self, until_s: float | None = None) -> None:
        """End a computation now, or at `until_s` (time.monotonic)."""
        self._spent_s["compute_s"] += self._passed(until_s)

    def exchanged(self, times: Times, until_s: float | None = None) -> None:
        """End an exchange now, or at `until_s`; the time outside of `times` counts as waiting."""
        spent = within_wait(Times(wait=self._passed(until_s)), times)
        for part in get_args(Part):
            self._spent_s[f"{part}_s"] += getattr(spent, part)

    def stepped(self) -> None:
        """End updates and evaluations."""
        self._spent_s["step_s"] += self._passed(None)

    def take(self) -> dict[str, float]:
        """Return the parts of the time since the last call."""
        spent_s, self._spent_s = self._spent_s, dict.fromkeys(TIME_PARTS, 0.0)
        return spent_s

    def _passed(self, until_s: float | None) -> float:
        before_s, self._since_s = self._since_s, time.monotonic() if until_s is None else until_s
        return self._since_s - before_s
