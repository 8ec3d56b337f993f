"""What a model has learnt: its metric, and the name of its parameters.

One evaluation says little about a training that has nearly reached its target: single steps jump over it and back.  So
a value is the mean over the last `over` evaluations (run.accuracy_over); these are part of a replica's state, and a
worker that comes back stops with the others.

A large model takes longer to evaluate than to train: with `every` (run.evaluate_every) it is looked at after every so
many iterations and after the last one, and those between have no value.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn.host.kernels.sample import fingerprint
from kofn.host.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Of the parameters after an iteration; None where nobody looked, or where it is not finite."""

    accuracy: float | None  # the workload's metric
    owned_accuracy: float | None  # on the classes that only one worker holds; None: every class has more
    params: str  # fingerprint


class Evaluator:
    """Looks at a model that changes; `last`: the last iteration."""

    def __init__(self, workload: Workload, *, over: int = 1, every: int = 1, last: int | None = None) -> None:
        self._workload, self._every, self._last = workload, every, last
        self.recent: npt.NDArray[np.float64] = np.zeros(over)
        """The latest values, each at its evaluation's number modulo `over`: a part of the replica's state."""

    def look(self, iteration: int) -> Evaluation:
        """At the parameters as they are after this iteration, if there is a metric and it is time to."""
        workload = self._workload
        params = fingerprint(workload.parameters)
        if workload.metric is None or (iteration % self._every and iteration != self._last):
            return Evaluation(accuracy=None, owned_accuracy=None, params=params)
        self.recent[self._number(iteration) % self.recent.size] = workload.evaluate()
        return Evaluation(accuracy=self.value(iteration), owned_accuracy=workload.evaluate_owned(), params=params)

    def value(self, iteration: int) -> float | None:
        """As it is known after this iteration: the mean over the latest evaluations; None before the first one."""
        last = self._number(iteration)
        if self._workload.metric is None or not last:
            return None
        first = max(1, last - self.recent.size + 1)
        mean = float(np.mean([self.recent[one % self.recent.size] for one in range(first, last + 1)]))
        return mean if math.isfinite(mean) else None

    def _number(self, iteration: int) -> int:
        """Of the latest evaluation up to this iteration, from 1; the last one may come before its time."""
        return iteration // self._every + (iteration == self._last and iteration % self._every > 0)
