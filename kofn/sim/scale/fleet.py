"""The workers' gradients, iteration by iteration, under the rules for late gradients; without links and sums.

Arrays are (seeds, workers), or (seeds, 1) for times that all workers of a seed share; times are in seconds. A gradient
is *late* when the iteration in which its worker began the gradient has ended without the gradient. A late gradient is
*old* in the later iteration in which its worker finishes the gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kofn_common.config.late_rules import GIVE_UPS, LateRule
from kofn_common.wire.sizes import PARTS
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.policy.process import Beyond, IntArray, counted, finished

Draw = Callable[[FloatArray, int], FloatArray]
"""A function that returns how long gradients take, in seconds (seeds, workers). Its arguments are the times at which
workers begin the gradients, in seconds after the iteration's beginning (seeds, workers), and the gradients' number in
the iteration, from 0."""

Ends = Callable[[FloatArray], FloatArray]
"""A function that returns the times at which iterations end (seeds, 1). Its argument is the times at which gradients
are finished (seeds, workers or a multiple of workers). All times are in seconds after the iteration's beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """A gradient of each worker: the iteration in which the worker began the gradient, and the seconds that the
    gradient took or will take."""

    begun_in: IntArray
    took_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An iteration that has ended."""

    length_s: FloatArray  # (seeds, 1)
    included: BoolArray  # the worker's latest gradient counts
    given_up: BoolArray  # the worker has given up its latest gradient
    latest: Gradients
    old: BoolArray  # the worker finished an old gradient, which does not count
    before: Gradients  # the old gradients
    old_s: FloatArray  # when the old gradients were finished, in seconds after the iteration's beginning
    more: IntArray  # (seeds,) the number of further gradients of workers that were done


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The workers of some seeds under one rule at a time."""

    shape: tuple[int, int]  # seeds, workers
    overhead_s: float
    way_s: float
    """The part of the overhead before workers know that the iteration has ended."""
    _rest_s: FloatArray = field(init=False)  # remaining time of gradients in progress at an iteration's beginning
    _latest: Gradients = field(init=False)
    _idle: BoolArray = field(init=False)  # the worker has no gradient in progress
    _missed: IntArray = field(init=False)  # iterations in a row in which the worker was late

    def __post_init__(self) -> None:
        self._rest_s = np.zeros(self.shape)
        self._latest = Gradients(begun_in=np.zeros(self.shape, np.int64), took_s=np.zeros(self.shape))
        self._missed = np.zeros(self.shape, np.int64)
        self._idle = np.ones(self.shape, np.bool_)

    def iterate(self, iteration: int, rule: LateRule, draw: Draw, ends: Ends) -> Ended:
        """Simulate an iteration."""
        if rule.counts:
            return self._with_old(iteration, draw, ends)
        return self._without_old(iteration, rule, draw, ends)

    def _with_old(self, iteration: int, draw: Draw, ends: Ends) -> Ended:
        """Simulate an iteration of async, in which old gradients count.

        A worker may finish a gradient after the iteration has ended, but before the worker knows of the end. The worker
        sends such a gradient to the ended iteration. The gradient does not count, and the worker begins another one.
        """
        idle, drawn_s = self._idle, draw(np.zeros(self.shape), 0)
        rest_s = np.where(idle, drawn_s, self._rest_s)
        latest = Gradients(
            begun_in=np.where(idle, iteration, self._latest.begun_in),
            took_s=np.where(idle, drawn_s, self._latest.took_s),
        )
        last_s, included, none = ends(rest_s), np.empty(self.shape, np.bool_), np.zeros(self.shape, np.bool_)
        self._rest_s = counted(rest_s, last_s, np.zeros(1), Beyond(self.overhead_s), included)
        too_late = ~included & (rest_s <= np.maximum(last_s, 0.0) + self.way_s)
        self._idle, self._latest = included | too_late, latest
        self._missed = np.where(included, 0, self._missed + 1)
        return Ended(
            length_s=np.maximum(last_s, 0.0),
            included=included,
            given_up=none,
            latest=latest,
            old=too_late,
            before=latest,
            old_s=rest_s,
            more=np.zeros(len(rest_s), np.int64),
        )

    def _without_old(self, iteration: int, rule: LateRule, draw: Draw, ends: Ends) -> Ended:
        """Simulate an iteration of any other rule than async: only gradients that were begun in this iteration
        count."""
        before, rest_s = self._latest, np.maximum(self._rest_s, 0.0)
        drawn_s = draw(rest_s, 0)
        arrival_s = rest_s + drawn_s
        end_s, more = ends(arrival_s), np.zeros(len(rest_s), np.int64)
        if rule.repeats:
            end_s, more = _repeated(arrival_s, end_s, draw, ends)
        begun, included = np.empty((2, *self.shape), np.bool_)
        self._rest_s = finished(rest_s, arrival_s, end_s, self.overhead_s, begun, included)
        old = ~self._idle & begun
        given_up = begun & ~included & (self._missed < GIVE_UPS) if rule.gives_up else np.zeros_like(begun)
        self._latest = Gradients(
            begun_in=np.where(begun, iteration, before.begun_in), took_s=np.where(begun, drawn_s, before.took_s)
        )
        self._idle = included | given_up
        self._rest_s[self._idle] = 0.0
        self._missed = np.where(included, 0, self._missed + (given_up | old))
        return Ended(
            length_s=end_s,
            included=included,
            given_up=given_up,
            latest=self._latest,
            old=old,
            before=before,
            old_s=rest_s,
            more=more,
        )


def _repeated(arrival_s: FloatArray, end_s: FloatArray, draw: Draw, ends: Ends) -> tuple[FloatArray, IntArray]:
    """Return when iterations end (seeds, 1) and the number of further gradients in the sums (seeds,), under a rule by
    which workers that are done compute further gradients."""
    latest_s, points_s = arrival_s, [arrival_s]
    for batch in range(1, PARTS):
        again = latest_s < end_s
        if not again.any():
            break
        latest_s = np.where(again, latest_s + draw(np.where(again, latest_s, 0.0), batch), np.inf)
        points_s.append(latest_s)
        end_s = ends(np.concatenate(points_s, axis=1))
    further = sum((np.sum(points <= end_s, axis=1) for points in points_s[1:]), np.zeros(len(end_s), np.int64))
    return end_s, further
