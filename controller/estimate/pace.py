"""Measured iteration times, for each k and beyond the workers' first blocks. Bounded memory; no clock, no I/O."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kofn.config.late_rules import RuleName
from kofn.controller.estimate.measurements import FloatArray

KEPT = 256
"""Latest iterations of each k that its mean is over."""

OVERHEAD_KEPT = 32
"""Latest iterations that the overhead is the mean of: it depends on k, and the first ones take longer."""

OVERHEAD_MAX_S = 60.0
"""A longer time after a first block is no measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIterations:
    """The mean time of an iteration while a k and a rule were in force, of how many, and which of them was the last."""

    mean_s: float  # 0 where there are none
    iterations: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One worker's way through an iteration that it was in, from parameters ready to parameters ready, seconds."""

    rank: int
    first_block_s: float
    iteration_s: float
    said_s: float  # when its report came, on the controller's clock
    together: bool  # it was in the iteration before as well, so it started this one with the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycles:
    """The ways of all k workers that were in an iteration, (k,) each; fields as in Cycle."""

    rank: NDArray[np.int64]
    first_block_s: FloatArray
    iteration_s: FloatArray
    said_s: FloatArray
    together: bool  # all started this iteration together

    @classmethod
    def of(cls, cycles: Sequence[Cycle]) -> Self:
        return cls(
            rank=np.array([cycle.rank for cycle in cycles]),
            first_block_s=np.array([cycle.first_block_s for cycle in cycles]),
            iteration_s=np.array([cycle.iteration_s for cycle in cycles]),
            said_s=np.array([cycle.said_s for cycle in cycles]),
            together=all(cycle.together for cycle in cycles),
        )

    def overhead_s(self, transfers_s: FloatArray) -> float:
        """Return the time of the iteration beyond the k-th first block and its transfer; `transfers_s` (workers,).

        If all k started together, the overhead is their mean time after the longest first block. This includes the
        delay of a worker that got its parameters late and so became the k-th. Otherwise the others' start is unknown:
        the k-th is then the worker with the shortest wait, corrected by how much earlier or later than the average it
        got its parameters.
        """
        there_s = self.first_block_s + transfers_s[self.rank]
        if self.together:
            return float(self.iteration_s.mean() - there_s.max())
        return float((self.iteration_s - there_s - (self.said_s - self.said_s.mean())).min())


@dataclass(slots=True, kw_only=True)
class Pace:
    """The time from the first report of one iteration to that of the next, by k and rule for late gradients.

    An iteration in which one of them changes counts for none.
    """

    _times_s: dict[tuple[int, RuleName], deque[float]] = field(default_factory=dict)
    _newest: dict[tuple[int, RuleName], int] = field(default_factory=dict)  # the newest iteration that is among them
    _last: tuple[int, tuple[int, RuleName], float] | None = None  # the iteration that ended last, k and rule, and when

    _ended: deque[Cycles] = field(default_factory=lambda: deque(maxlen=OVERHEAD_KEPT))
    _catch_up_s: deque[float] = field(default_factory=lambda: deque(maxlen=OVERHEAD_KEPT))  # an iteration
    _iteration: int = 0  # the one that is reported now
    _cycles: list[Cycle] = field(default_factory=list)  # of the workers that were in it
    _in: dict[int, int] = field(default_factory=dict)  # the latest iteration that a worker was in, by rank

    def ended(self, iteration: int, k: int, rule: RuleName, now_s: float) -> None:
        """Note the end of an iteration; `k` and `rule` are in force now. Several that ended unseen share their time."""
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
        self, rank: int, iteration: int, k: int, *, first_block_s: float, iteration_s: float, now_s: float
    ) -> None:
        """A worker was in an iteration that needed `k`: its times from parameters ready to first block, and to the end.

        When all k have said so, the iteration counts.
        """
        if not 0 < iteration_s - first_block_s < OVERHEAD_MAX_S or iteration < self._iteration:
            return
        together = self._in.get(rank, 0) == iteration - 1
        cycle = Cycle(rank=rank, first_block_s=first_block_s, iteration_s=iteration_s, said_s=now_s, together=together)
        if iteration > self._iteration:
            self._iteration, self._cycles = iteration, []
        self._in[rank] = iteration
        self._cycles.append(cycle)
        if len(self._cycles) == k:
            self._ended.append(Cycles.of(self._cycles))

    def caught_up(self, age: int, catch_up_s: float) -> None:
        """A late gradient of this age, in iterations, had to wait for its worker to apply what it had missed."""
        if age > 0 and catch_up_s > 0:
            self._catch_up_s.append(catch_up_s / age)

    @property
    def catch_up_s(self) -> float:
        """Return the mean time that each missed iteration takes a worker before its late gradient counts; 0 while
        unknown.
        """
        return float(np.mean(self._catch_up_s)) if self._catch_up_s else 0.0

    def overhead_s(self, transfers_s: FloatArray) -> float:
        """Return the mean time of an iteration beyond its k-th first block and the transfer of that worker.

        The rest is the transfer that all have in common, the sum and the step; 0 while unknown. `transfers_s`
        (workers,): the further time in slower links (estimate/transfers.py).
        """
        return (
            max(0.0, float(np.mean([cycles.overhead_s(transfers_s) for cycles in self._ended]))) if self._ended else 0.0
        )
