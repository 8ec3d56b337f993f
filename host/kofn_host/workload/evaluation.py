"""Evaluation of a model: its metric, and the fingerprint of its parameters.

Single evaluations oscillate around the target when a training has nearly reached it.  So a value is the mean over the
last `over` evaluations (run.accuracy_over).  These evaluations are part of a replica's state, so a rejoining worker
stops with the others.

A large model may take longer to evaluate than to train.  So a model is evaluated only every `every` iterations
(run.evaluate_every), and after the last iteration; other iterations have no value.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import fingerprint
from kofn_host.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The evaluation after an iteration; a value is None if it was not evaluated, or is not finite."""

    accuracy: float | None  # the workload's metric
    owned_accuracy: float | None  # accuracy on the classes that only one worker holds; None: no such class
    params: str  # fingerprint


class Evaluator:
    """Evaluates a model as it changes; `last`: the last iteration."""

    def __init__(self, workload: Workload, *, over: int = 1, every: int = 1, last: int | None = None) -> None:
        self._workload, self._every, self._last = workload, every, last
        self.recent: npt.NDArray[np.float64] = np.zeros(over)
        """The latest values, each at its evaluation's number modulo `over`; part of the replica's state."""

    def look(self, iteration: int) -> Evaluation:
        """Evaluate the parameters after this iteration, if there is a metric and an evaluation is due."""
        workload = self._workload
        params = fingerprint(workload.parameters)
        if workload.metric is None or (iteration % self._every and iteration != self._last):
            return Evaluation(accuracy=None, owned_accuracy=None, params=params)
        self.recent[self._number(iteration) % self.recent.size] = workload.evaluate()
        return Evaluation(accuracy=self.value(iteration), owned_accuracy=workload.evaluate_owned(), params=params)

    def value(self, iteration: int) -> float | None:
        """Return the metric after this iteration: the mean over the latest evaluations; None before the first one."""
        last = self._number(iteration)
        if self._workload.metric is None or not last:
            return None
        first = max(1, last - self.recent.size + 1)
        mean = float(np.mean([self.recent[number % self.recent.size] for number in range(first, last + 1)]))
        return mean if math.isfinite(mean) else None

    def _number(self, iteration: int) -> int:
        """Return the number of the latest evaluation up to this iteration, from 1; 0 before the first evaluation.

        The interval before the last evaluation may be shorter than `every` iterations.
        """
        return iteration // self._every + (iteration == self._last and iteration % self._every > 0)
