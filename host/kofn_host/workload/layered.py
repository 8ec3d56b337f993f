"""Models with passes layer by layer, so that weight gradients can be computed and sent in another order."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from kofn_host.arrays import Floats
from kofn_host.schedule.layers import Layer
from kofn_host.schedule.orders import Step, usual
from kofn_host.workload.workload import Workload


class LayeredModel(ABC):
    """A model of `layers`, counted from 0, with `parameters`.

    The calls for one batch: the forward passes from the first layer on, the loss, and the steps of a backward pass in
    any order of schedule.orders.
    """

    parameters: Floats
    layers: Sequence[Layer]
    span_s: tuple[float, float] | None = None
    """Begin and end of the latest pass on another processor, perhaps in the future (time.monotonic); None if the pass
    was computed here, and has ended."""

    @abstractmethod
    def forward(self, layer: int) -> None:
        """Compute a layer's forward pass, after the forward passes of all layers before it."""

    @abstractmethod
    def loss(self) -> float | None:
        """Return the loss after all forward passes; this also computes the last layer's error term."""

    def expect(self, steps: Sequence[Step]) -> None:  # noqa: B027  # most models do nothing ahead
        """Announce the steps of a backward pass; a model may compute them ahead."""

    @abstractmethod
    def error(self, layer: int) -> None:
        """Compute the error term of this layer's input."""

    @abstractmethod
    def weight(self, layer: int) -> Floats:
        """Return the gradient of a layer's parameters, shape (elements,)."""

    def step(self, step: Step, gradient: Floats) -> None:
        """Compute a step of a backward pass; write a weight gradient to its place in `gradient`."""
        if step.kind == "error":
            self.error(step.layer)
        else:
            layer = self.layers[step.layer]
            gradient[layer.begin : layer.end] = self.weight(step.layer)

    def passes(self) -> tuple[float | None, Floats]:
        """Run all passes in the usual order; return the loss, if any, and the gradient, of the parameters' shape."""
        for layer in range(len(self.layers)):
            self.forward(layer)
        loss, gradient = self.loss(), np.empty_like(self.parameters)
        for step in usual(len(self.layers), 0):
            self.step(step, gradient)
        return loss, gradient


class LayeredWorkload(Workload):
    """A workload with a layered model."""

    model: LayeredModel

    @abstractmethod
    def begin(self, iteration: int, batch: int = 0) -> None:
        """Give the model the data of an iteration's `batch`-th gradient."""

    def gradient(self, iteration: int, batch: int = 0) -> tuple[float | None, Floats]:
        self.begin(iteration, batch)
        return self.model.passes()
