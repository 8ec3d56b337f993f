"""Models whose passes go layer by layer, so that weight gradients may be computed, and leave, in another order."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.schedule.layers import Layer
from kofn.host.schedule.orders import Step, usual
from kofn.host.workload.workload import Workload


class LayeredModel(ABC):
    """`layers`, counted from 0, of `parameters`; on one batch come the forward passes from the first layer on, the
    loss, and the steps of a backward pass in any order of schedule.orders.
    """

    parameters: Floats
    layers: Sequence[Layer]
    span_s: tuple[float, float] | None = None
    """From when to when another processor computes the latest pass, which may be to come (time.monotonic); None: no
    other does, and it has ended."""

    @abstractmethod
    def forward(self, layer: int) -> None:
        """The layers before it first."""

    @abstractmethod
    def loss(self) -> float | None:
        """After all forward passes; with it comes the last layer's error term."""

    def expect(self, steps: Sequence[Step]) -> None:  # noqa: B027  # most cannot
        """A backward pass of these steps begins: who can do so goes on with each before it is asked for."""

    @abstractmethod
    def error(self, layer: int) -> None:
        """The error term of the layer before this one, by this one's parameters."""

    @abstractmethod
    def weight(self, layer: int) -> Floats:
        """The gradient of a layer's parameters, shape (elements,)."""

    def step(self, step: Step, gradient: Floats) -> None:
        """One of a backward pass; `gradient`, shape of `parameters`, has a layer's weight gradient then."""
        if step.kind == "error":
            self.error(step.layer)
        else:
            layer = self.layers[step.layer]
            gradient[layer.begin : layer.end] = self.weight(step.layer)

    def passes(self) -> tuple[float | None, Floats]:
        """All of them, in the usual order: the loss, where there is one, and the gradient, shape of `parameters`."""
        for layer in range(len(self.layers)):
            self.forward(layer)
        loss, gradient = self.loss(), np.empty_like(self.parameters)
        for step in usual(len(self.layers), 0):
            self.step(step, gradient)
        return loss, gradient


class LayeredWorkload(Workload):
    """One whose gradients are a layered model's."""

    model: LayeredModel

    @abstractmethod
    def begin(self, iteration: int, batch: int = 0) -> None:
        """Give the model the data of an iteration's `batch`-th gradient."""

    def gradient(self, iteration: int, batch: int = 0) -> tuple[float | None, Floats]:
        self.begin(iteration, batch)
        return self.model.passes()
