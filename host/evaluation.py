"""What a model has learnt: its accuracy on held-out images, and the name of its parameters.

One evaluation says little about a training that has nearly reached its target: single steps jump over it and back.  So
an accuracy is the mean over the last `over` iterations (run.accuracy_over); these are part of a replica's state, and a
worker that comes back stops with the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host.metrics import fingerprint
from host.model import Batch, Perceptron


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Of the parameters after an iteration; accuracies from 0 to 1."""

    accuracy: float
    owned_accuracy: float | None  # on the classes that only one worker holds; None: every class has more
    params: str  # fingerprint


class Evaluator:
    """Looks at a model that changes; `owned`: the classes that only one worker holds."""

    def __init__(self, model: Perceptron, held_out: Batch, owned: Sequence[int], *, over: int = 1) -> None:
        self._model, self._held_out = model, held_out
        self._owned = held_out.of(owned) if owned else None
        self.recent: npt.NDArray[np.float64] = np.zeros(over)
        """Accuracies after the latest iterations, each at its number modulo `over`."""

    def look(self, iteration: int) -> Evaluation:
        """At the model as it is after this iteration."""
        self.recent[iteration % self.recent.size] = self._model.accuracy(self._held_out)
        return Evaluation(
            accuracy=self.accuracy(iteration),
            owned_accuracy=self._model.accuracy(self._owned) if self._owned else None,
            params=fingerprint(self._model.parameters),
        )

    def accuracy(self, iteration: int) -> float:
        """The mean over the last iterations up to this one, of which all that there were have been looked at."""
        first = max(1, iteration - self.recent.size + 1)
        return float(np.mean([self.recent[one % self.recent.size] for one in range(first, iteration + 1)] or [0.0]))
