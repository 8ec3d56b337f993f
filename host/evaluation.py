"""What a model has learnt: its accuracy on held-out images, and the name of its parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

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

    def __init__(self, model: Perceptron, held_out: Batch, owned: Sequence[int]) -> None:
        self._model, self._held_out = model, held_out
        self._owned = held_out.of(owned) if owned else None

    def look(self) -> Evaluation:
        """At the model as it is now."""
        return Evaluation(
            accuracy=self._model.accuracy(self._held_out),
            owned_accuracy=self._model.accuracy(self._owned) if self._owned else None,
            params=fingerprint(self._model.parameters),
        )
