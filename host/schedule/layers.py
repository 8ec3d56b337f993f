"""A model's layers, from the one that sees the data to the last one."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters `begin` to `end` of all."""

    name: str
    begin: int
    end: int

    @property
    def elements(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds, by layer, of its forward pass, of the error term of its input (the first layer's is not needed) and of
    its weight gradient.
    """

    forward: Sequence[float]
    error: Sequence[float]
    weight: Sequence[float]

    @property
    def compute_s(self) -> float:
        """Of a whole iteration."""
        return sum(self.forward) + sum(self.error[1:]) + sum(self.weight)
