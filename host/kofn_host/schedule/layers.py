"""A model's layers, from the first one, which gets the data, to the last one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: parameters `begin` to `end` of the model's."""

    name: str
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds, by layer, of the forward pass, of the input's error term (not needed for the first layer) and of the
    weight gradient.
    """

    forward: Sequence[float]
    error: Sequence[float]
    weight: Sequence[float]

    @property
    def compute_s(self) -> float:
        """The time of a whole iteration's computation."""
        return sum(self.forward) + sum(self.error[1:]) + sum(self.weight)
