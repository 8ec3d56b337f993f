"""What a model has learnt: its accuracy on held-out images, and the name of its parameters.

One evaluation says little about a training that has nearly reached its target: single steps jump over it and back.  So
an accuracy is the mean over the last `over` evaluations (run.accuracy_over); these are part of a replica's state, and a
worker that comes back stops with the others.

A large model takes longer to evaluate than to train: with `every` (run.evaluate_every) it is looked at after every so
many iterations and after the last one, and those between have no accuracy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats
from kofn.host.kernels.sample import fingerprint
from kofn.host.workload.model import Batch, Perceptron


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Of the parameters after an iteration; accuracies from 0 to 1, None where nobody looked."""

    accuracy: float | None
    owned_accuracy: float | None  # on the classes that only one worker holds; None: every class has more
    params: str  # fingerprint


class Evaluates(Protocol):
    """What training needs of who looks at its parameters."""

    recent: npt.NDArray[np.float64]
    """A part of the replica's state."""

    def look(self, iteration: int) -> Evaluation:
        """At the parameters as they are after this iteration."""

    def accuracy(self, iteration: int) -> float:
        """As it is known after this iteration."""


class Evaluator:
    """Looks at a model that changes; `owned`: the classes that only one worker holds; `last`: the last iteration."""

    def __init__(
        self,
        model: Perceptron,
        held_out: Batch,
        owned: Sequence[int],
        *,
        over: int = 1,
        every: int = 1,
        last: int | None = None,
    ) -> None:
        self._model, self._held_out, self._every, self._last = model, held_out, every, last
        self._owned = held_out.of(owned) if owned else None
        self.recent: npt.NDArray[np.float64] = np.zeros(over)
        """The latest accuracies, each at its evaluation's number modulo `over`."""

    def look(self, iteration: int) -> Evaluation:
        """At the model as it is after this iteration, if it is time to."""
        params = fingerprint(self._model.parameters)
        if iteration % self._every and iteration != self._last:
            return Evaluation(accuracy=None, owned_accuracy=None, params=params)
        self.recent[self._number(iteration) % self.recent.size] = self._model.accuracy(self._held_out)
        return Evaluation(
            accuracy=self.accuracy(iteration),
            owned_accuracy=self._model.accuracy(self._owned) if self._owned else None,
            params=params,
        )

    def accuracy(self, iteration: int) -> float:
        """The mean over the latest evaluations up to this iteration's, all of which have been made."""
        last = self._number(iteration)
        first = max(1, last - self.recent.size + 1)
        return float(np.mean([self.recent[one % self.recent.size] for one in range(first, last + 1)] or [0.0]))

    def _number(self, iteration: int) -> int:
        """Of the latest evaluation up to this iteration, from 1; the last one may come before its time."""
        return iteration // self._every + (iteration == self._last and iteration % self._every > 0)


class Unseen:
    """Parameters that cannot be judged: all that is known of them is whether they are the same everywhere."""

    def __init__(self, parameters: Floats) -> None:
        self._parameters = parameters
        self.recent: npt.NDArray[np.float64] = np.zeros(1)

    def look(self, iteration: int) -> Evaluation:
        return Evaluation(accuracy=None, owned_accuracy=None, params=fingerprint(self._parameters))

    def accuracy(self, iteration: int) -> float:
        """0: no target is ever reached."""
        return 0.0
