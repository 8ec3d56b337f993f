"""A sequential network of layers in NumPy, with ReLU between them and a final softmax.

Parameters and gradient are flat float32 vectors, as aggregation requires.  A layer's forward pass, the error term of
its input and its weight gradient are separate steps; the order of steps does not change the bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats
from kofn_host.schedule.layers import Layer
from kofn_host.workload.layered import LayeredModel


class Examples(Protocol):
    """Inputs, float32 (n, elements), and their classes, int64 (n,)."""

    @property
    def images(self) -> Floats: ...

    @property
    def labels(self) -> npt.NDArray[np.int64]: ...


class LayerKind(ABC):
    """A layer's computation; `flat` is the layer's part of the parameters; inputs and outputs are (n, elements)."""

    shape: tuple[int, int]
    """The weights' shape: (inputs of an output, outputs with separate weights)."""

    @property
    def elements(self) -> int:
        """Number of weights, plus one bias per column."""
        return (self.shape[0] + 1) * self.shape[1]

    def initial(self, random: np.random.Generator) -> Floats:
        """Return weights drawn as in He et al. (2015), and zero biases."""
        rows, columns = self.shape
        weights = random.normal(0, np.sqrt(2 / rows), rows * columns).astype(np.float32)
        return np.concatenate([weights, np.zeros(columns, np.float32)])

    def split(self, flat: Floats) -> tuple[Floats, Floats]:
        """Return views of weights and biases."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size:]

    @abstractmethod
    def forward(self, inputs: Floats, flat: Floats) -> Floats:
        """Return the outputs."""

    @abstractmethod
    def error(self, error: Floats, flat: Floats) -> Floats:
        """Return the inputs' error term, given the outputs' error term."""

    @abstractmethod
    def weight(self, inputs: Floats, error: Floats) -> Floats:
        """Return the gradient, flat like the parameters."""


class Dense(LayerKind):
    """A fully connected layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.shape = (inputs, outputs)

    def forward(self, inputs: Floats, flat: Floats) -> Floats:
        weights, bias = self.split(flat)
        return inputs @ weights + bias

    def error(self, error: Floats, flat: Floats) -> Floats:
        return error @ self.split(flat)[0].T

    def weight(self, inputs: Floats, error: Floats) -> Floats:
        gradient = np.empty(self.elements, np.float32)
        weights, bias = self.split(gradient)
        weights[:] = inputs.T @ error
        bias[:] = error.sum(axis=0)
        return gradient


class Convolution(LayerKind):
    """A 3 x 3 convolution with zero padding, on square images; values are in the order (row, column, channel)."""

    def __init__(self, side: int, channels: int, filters: int) -> None:
        self.shape = (9 * channels, filters)
        self._side, self._channels = side, channels

    def forward(self, inputs: Floats, flat: Floats) -> Floats:
        weights, bias = self.split(flat)
        return (self._windows(inputs) @ weights + bias).reshape(len(inputs), -1)

    def error(self, error: Floats, flat: Floats) -> Floats:
        side, channels = self._side, self._channels
        windows = (error.reshape(-1, self.shape[1]) @ self.split(flat)[0].T).reshape(-1, side, side, channels, 3, 3)
        bordered = np.zeros((len(error), side + 2, side + 2, channels), np.float32)
        for row in range(3):
            for column in range(3):
                bordered[:, row : row + side, column : column + side] += windows[..., row, column]
        return bordered[:, 1:-1, 1:-1].reshape(len(error), -1)

    def weight(self, inputs: Floats, error: Floats) -> Floats:
        by_filter = error.reshape(-1, self.shape[1])
        return np.concatenate([(self._windows(inputs).T @ by_filter).ravel(), by_filter.sum(axis=0)])

    def _windows(self, inputs: Floats) -> Floats:
        """Return the 3 x 3 windows of the inputs, (n * side * side, channels * 9)."""
        images = inputs.reshape(-1, self._side, self._side, self._channels)
        bordered = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(bordered, (3, 3), axis=(1, 2))
        return np.ascontiguousarray(windows).reshape(-1, self.shape[0])


class NeuralNetwork(LayeredModel):
    """A network that begins each gradient with a batch of examples."""

    def __init__(self, kinds: Sequence[LayerKind], seed: int) -> None:
        self._kinds = kinds
        random = np.random.default_rng(seed)
        self.parameters: Floats = np.concatenate([kind.initial(random) for kind in kinds])
        ends = accumulate((kind.elements for kind in kinds), initial=0)
        self.layers = [Layer(str(number), *edges) for number, edges in enumerate(pairwise(ends), 1)]

    def begin(self, examples: Examples) -> None:
        """Begin the passes of one batch."""
        self._labels = examples.labels
        self._inputs: dict[int, Floats] = {0: examples.images}  # by layer, while needed
        self._errors: dict[int, Floats] = {}  # error terms of the outputs, by layer, while needed

    def forward(self, layer: int) -> None:
        outputs = self._kinds[layer].forward(self._inputs[layer], self._flat(layer))
        hidden = layer + 1 < len(self.layers)
        self._inputs[layer + 1] = np.maximum(outputs, 0) if hidden else outputs

    def loss(self) -> float:
        """Return the mean cross-entropy."""
        last = len(self.layers)
        probability = _softmax(self._inputs.pop(last))
        rows = np.arange(len(self._labels))
        loss = float(-np.log(np.maximum(probability[rows, self._labels], 1e-12)).mean())
        probability[rows, self._labels] -= 1
        self._errors[last - 1] = probability / np.float32(len(rows))
        return loss

    def error(self, layer: int) -> None:
        error = self._kinds[layer].error(self._errors[layer], self._flat(layer))
        self._errors[layer - 1] = error * (self._inputs[layer] > 0)

    def weight(self, layer: int) -> Floats:
        return self._kinds[layer].weight(self._inputs[layer], self._errors[layer])

    def gradient(self, examples: Examples) -> tuple[float, Floats]:
        """Return the loss over a batch, and its gradient, shape of `parameters`."""
        self.begin(examples)
        loss, gradient = self.passes()
        assert loss is not None
        return loss, gradient

    def accuracy(self, examples: Examples) -> float:
        """Return the share of correctly classified examples."""
        values = examples.images
        for layer, kind in enumerate(self._kinds):
            values = kind.forward(values if layer == 0 else np.maximum(values, 0), self._flat(layer))
        return float(np.mean(np.argmax(values, axis=1) == examples.labels))

    def _flat(self, layer: int) -> Floats:
        return self.parameters[self.layers[layer].begin : self.layers[layer].end]


def _softmax(scores: Floats) -> Floats:
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), np.float32)
