"""Measures iteration times by k and rule, and the time from the k-th first block to the end of an iteration. Bounded
memory; no clock, no I/O.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kofn_common.config.late_rules import RuleName
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.reports import Numbers, Ranks

KEPT = 256
"""Number of latest iterations in the mean of a k and a rule."""

OVERHEAD_KEPT = 32
"""Number of latest iterations in the mean overhead: few, because the overhead changes with k and the first iterations
take longer."""

OVERHEAD_MAX_S = 60.0
"""Maximum time from a first block to the end of its iteration that is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIterations:
    """The measured time of an iteration under a k and a rule."""

    mean_s: float  # 0 if no iteration was measured
    iterations: int  # the number in the mean
    last: int  # the latest measured iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The times of one or several workers in an iteration whose sum contains their gradients."""

    rank: Ranks
    first_block_s: Numbers  # from parameters ready to first block sent
    iteration_s: Numbers  # from parameters ready to the next parameters ready
    reported_s: Numbers  # arrival of the report, on the controller's clock
    together: bool  # the previous sum contains them as well, so they started this iteration with the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """The times of all k workers in an iteration's sum, (k,) each; fields as in Cycle."""

    rank: NDArray[np.int64]
    first_block_s: FloatArray
    iteration_s: FloatArray
    reported_s: FloatArray
    together: bool  # all started this iteration together

    @classmethod
    def of(cls, cycles: Sequence[Cycle]) -> Self:
        return cls(
            rank=np.hstack([cycle.rank for cycle in cycles]),
            first_block_s=np.hstack([cycle.first_block_s for cycle in cycles]),
            iteration_s=np.hstack([cycle.iteration_s for cycle in cycles]),
            reported_s=np.hstack([cycle.reported_s for cycle in cycles]),
            together=all(cycle.together for cycle in cycles),
        )

    def overhead_s(self, transfers_s: FloatArray) -> float:
        """Return the time of the iteration beyond the k-th first block and its transfer; `transfers_s` (workers,).

        If all k started together, the overhead is their mean iteration time minus the longest first block and
        transfer. This includes the delay of a worker that got its parameters late and so became the k-th. Otherwise the
        workers' starts are unknown. Each worker's iteration time is then reduced by the time by which its report came
        after the mean report, and the overhead is the least difference of a worker.
        """
        arrived_s = self.first_block_s + transfers_s[self.rank]
        if self.together:
            return float(self.iteration_s.mean() - arrived_s.max())
        return float((self.iteration_s - arrived_s - (self.reported_s - self.reported_s.mean())).min())


@dataclass(slots=True, kw_only=True)
class Pace:
    """The times from the first report of one iteration to that of the next, by k and rule for late gradients.

    The time of an iteration in which k or the rule changes is not measured.
    """

    workers: int
    _times_s: dict[tuple[int, RuleName], deque[float]] = field(default_factory=dict)
    _newest: dict[tuple[int, RuleName], int] = field(default_factory=dict)  # the newest iteration of each
    _last: tuple[int, tuple[int, RuleName], float] | None = None  # the iteration that ended last, k and rule, and when

    _ended: deque[Cycles] = field(default_factory=lambda: deque(maxlen=OVERHEAD_KEPT))
    _catch_up_s: deque[float] = field(
        default_factory=lambda: deque(maxlen=OVERHEAD_KEPT)
    )  # catch-up times of late gradients
    _iteration: int = 0  # the latest iteration with a report
    _cycles: list[Cycle] = field(default_factory=list)  # times of the workers in the iteration's sum
    _followed: int = 0  # the number of workers in `_cycles`
    _in: NDArray[np.int64] = field(init=False)  # (workers,) the latest iteration whose sum contains each worker

    def __post_init__(self) -> None:
        self._in = np.zeros(self.workers, np.int64)

    def ended(self, iteration: int, k: int, rule: RuleName, now_s: float) -> None:
        """Note the end of an iteration; `k` and `rule` are in force now. If several iterations ended unseen, each
        gets an equal share of the time.
        """
        option = k, rule
        if self._last is not None:
            before, option_before, then_s = self._last
            if option == option_before:
                times_s = self._times_s.setdefault(option, deque(maxlen=KEPT))
                times_s.extend([(now_s - then_s) / (iteration - before)] * min(iteration - before, KEPT))
                self._newest[option] = iteration
        self._last = iteration, option, now_s

    def measured(self, k: int, rule: RuleName) -> MeasuredIterations:
        """Return the measurements of this k under this rule."""
        times_s = self._times_s.get((k, rule), ())
        return MeasuredIterations(
            mean_s=float(np.mean(times_s)) if times_s else 0.0,
            iterations=len(times_s),
            last=self._newest.get((k, rule), 0),
        )

    def followed(
        self, rank: Ranks, iteration: int, k: int, *, first_block_s: Numbers, iteration_s: Numbers, now_s: Numbers
    ) -> None:
        """Take the times of a worker, or of several, in the sum of an iteration with this k (fields as in Cycle).

        The iteration counts once k workers have reported their times.
        """
        beyond_s = iteration_s - first_block_s
        if not np.all((beyond_s > 0) & (beyond_s < OVERHEAD_MAX_S)) or iteration < self._iteration:
            return
        together = bool(np.all(self._in[rank] == iteration - 1))
        cycle = Cycle(
            rank=rank, first_block_s=first_block_s, iteration_s=iteration_s, reported_s=now_s, together=together
        )
        if iteration > self._iteration:
            self._iteration, self._cycles, self._followed = iteration, [], 0
        self._in[rank] = iteration
        self._cycles.append(cycle)
        self._followed += np.size(rank)
        if self._followed == k:
            self._ended.append(Cycles.of(self._cycles))

    def caught_up(self, age: int, catch_up_s: float) -> None:
        """Note how long a late gradient of this age, in iterations, waited while its worker applied missed results."""
        if age > 0 and catch_up_s > 0:
            self._catch_up_s.append(catch_up_s / age)

    @property
    def catch_up_s(self) -> float:
        """Mean time for which each missed iteration delays a late gradient; 0 while unknown."""
        return float(np.mean(self._catch_up_s)) if self._catch_up_s else 0.0

    def overhead_s(self, transfers_s: FloatArray) -> float:
        """Return the mean time of an iteration beyond its k-th first block and that block's additional transfer.

        This time covers the normal transfer, the sum and the step; 0 while unknown. `transfers_s` (workers,): the
        additional time in slower links (estimate/transfers.py).
        """
        return (
            max(0.0, float(np.mean([cycles.overhead_s(transfers_s) for cycles in self._ended]))) if self._ended else 0.0
        )
