"""A model's layers, from the first one, which gets the data, to the last one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: the model's parameters `begin` to `end`."""

    name: str
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of layers: seconds of the forward pass, the input's error term and the weight gradient, by layer.

    The first layer's error term is not needed.
    """

    forward: Sequence[float]
    error: Sequence[float]
    weight: Sequence[float]

    @property
    def compute_s(self) -> float:
        """The time of a whole iteration's computation."""
        return sum(self.forward) + sum(self.error[1:]) + sum(self.weight)
