"""Families of schedules, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from kofn_host.schedule.orders import Step, front_first, late_front, usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of schedules: how computation and transfers overlap.

    `order`: returns the order of the backward pass, given the numbers of layers and of front layers; `overlaps`: pieces
    leave while the rest of the gradient is computed; `by_layer`: a layer's forward pass waits only for the parameters
    of this layer; `prioritised`: pieces of earlier layers overtake others; `cuts`: layers larger than the threshold
    leave in several pieces.
    """

    order: Callable[[int, int], list[Step]] = usual
    overlaps: bool = True
    by_layer: bool = True
    prioritised: bool = False
    cuts: bool = False
    has_front: bool = False


FAMILIES: Mapping[str, Family] = {
    "sequential": Family(overlaps=False, by_layer=False),
    "buckets": Family(by_layer=False),  # PyTorch's DistributedDataParallel
    "wait-free": Family(),  # wait-free backpropagation: first in, first out
    "priority": Family(prioritised=True, cuts=True),  # P3, ByteScheduler
    "front-first": Family(order=front_first, prioritised=True, cuts=True, has_front=True),  # source 001
    "late-front": Family(order=late_front, prioritised=True, cuts=True, has_front=True),
}


@dataclass(frozen=True, slots=True, order=True)
class PassSchedule:
    """A schedule of a family: a threshold in elements, and the number of front layers, 0 if the family has none."""

    name: str
    threshold: int
    front: int = 0

    def __str__(self) -> str:
        return f"{self.name}:{self.threshold}:{self.front}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the schedule that str() printed."""
        name, threshold, front = text.split(":")
        return cls(name, int(threshold), int(front))

    @property
    def family(self) -> Family:
        return FAMILIES[self.name]

    def order(self, layers: int) -> list[Step]:
        return self.family.order(layers, self.front)
