"""Where each layer's gradient is on the wire: from the last layer to the first, each beginning with a block."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.schedule.layers import Layer


class WireLayout:
    """Of `elements` in blocks of `block_elements`; what follows a layer in its last block is 0.

    A backward pass comes to the last layer first, so blocks are numbered about as they leave.
    """

    def __init__(self, layers: Sequence[Layer], block_elements: int) -> None:
        self._layers = layers
        blocks = [-(-layer.elements // block_elements) for layer in layers]
        self._begins = [sum(blocks[at + 1 :]) * block_elements for at in range(len(layers))]
        self.elements = sum(blocks) * block_elements

    def place(self, layer: int) -> slice:
        """A layer's on the wire."""
        return slice(self._begins[layer], self._begins[layer] + self._layers[layer].elements)

    def padding(self) -> list[tuple[int, int]]:
        """Ranges that belong to no layer."""
        ends = {self.place(layer).stop: begin for layer, begin in enumerate([self.elements, *self._begins][:-1])}
        return [(end, begin) for end, begin in ends.items() if end < begin]

    def at(self, layer: int, parameter: int) -> int:
        """Where a parameter of this layer is."""
        return self._begins[layer] + parameter - self._layers[layer].begin

    @cached_property
    def _parameters(self) -> Floats:
        return np.empty(self._layers[-1].end, np.float32)

    def parameters(self, wire: Floats) -> Floats:
        """The same in the order of the parameters: valid until the next call."""
        for number, layer in enumerate(self._layers):
            self._parameters[layer.begin : layer.end] = wire[self.place(number)]
        return self._parameters
