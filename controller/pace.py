"""What iterations really took, for each k and beyond the workers' first blocks. Bounded memory; no clock, no I/O."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

KEPT = 256
"""Latest iterations of each k that its mean is over."""

OVERHEAD_MAX_S = 60.0
"""A longer time after a first block is no measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The mean time of an iteration while a k was in force, and of how many."""

    mean_s: float  # 0 where there are none
    iterations: int


@dataclass(slots=True, kw_only=True)
class Pace:
    """The time from the first report of one iteration to that of the next; one in which k changes counts for no k."""

    _times_s: dict[int, deque[float]] = field(default_factory=dict)
    _last: tuple[int, int, float] | None = None  # the iteration that ended last, k then, and when

    _overhead_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _least: tuple[int, float] = (0, 0.0)  # the iteration that is reported now, and its least time after a first block

    def ended(self, iteration: int, k: int, now_s: float) -> None:
        """An iteration has ended; `k` is in force now. Where several ended unseen each gets the same share."""
        if self._last is not None:
            before, k_before, then_s = self._last
            if k == k_before:
                times_s = self._times_s.setdefault(k, deque(maxlen=KEPT))
                times_s.extend([(now_s - then_s) / (iteration - before)] * min(iteration - before, KEPT))
        self._last = iteration, k, now_s

    def measured(self, k: int) -> Measured:
        """What is known of this k."""
        times_s = self._times_s.get(k, ())
        return Measured(mean_s=float(np.mean(times_s)) if times_s else 0.0, iterations=len(times_s))

    def followed(self, iteration: int, after_s: float) -> None:
        """A worker that was in had its new parameters `after_s` after its first block: the last one waited least."""
        if not 0 < after_s < OVERHEAD_MAX_S or iteration < self._least[0]:
            return
        if iteration == self._least[0]:
            self._least = iteration, min(after_s, self._least[1])
            return
        if self._least[0]:
            self._overhead_s.append(self._least[1])
        self._least = iteration, after_s

    @property
    def overhead_s(self) -> float:
        """Mean time from the last of k first blocks to the new parameters: transfer, sum and step; 0 while unknown."""
        return float(np.mean(self._overhead_s)) if self._overhead_s else 0.0
