"""The places of layers' gradients on the wire.

Each block belongs to one layer.  Blocks leave approximately in the order of their numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np

from kofn_host.arrays import Floats
from kofn_host.schedule.layers import Layer

Place = tuple[slice, slice]
"""A range on the wire, and the same elements' range among the parameters."""


class WireLayout:
    """A gradient of `elements` in blocks of `block_elements`; a layer's last block is padded with zeros.

    `order`: the layer of each block, by the block's number; a layer's blocks are in ascending order.  None: from the
    last layer to the first, as in a backward pass.
    """

    def __init__(self, layers: Sequence[Layer], block_elements: int, order: Sequence[int] | None = None) -> None:
        self._layers = layers
        blocks = [-(-layer.elements // block_elements) for layer in layers]
        if order is None:
            order = [layer for layer in reversed(range(len(layers))) for _ in range(blocks[layer])]
        self.elements = len(order) * block_elements
        self._places: list[list[Place]] = [[] for _ in layers]
        at, begins = 0, [layer.begin for layer in layers]
        for layer, run in groupby(order):
            wire, begin = at, begins[layer]
            at += sum(1 for _ in run) * block_elements
            begins[layer] = end = min(layers[layer].end, begin + at - wire)
            self._places[layer].append((slice(wire, wire + end - begin), slice(begin, end)))

    def places(self, layer: int, begin: int | None = None, end: int | None = None) -> Iterator[Place]:
        """Yield the places of a layer's parameters `begin` to `end`; None: from the first, or to the last."""
        for wire, elements in self._places[layer]:
            first = elements.start if begin is None else max(begin, elements.start)
            last = elements.stop if end is None else min(end, elements.stop)
            if first < last:
                at = wire.start - elements.start
                yield slice(at + first, at + last), slice(first, last)

    def padding(self) -> list[tuple[int, int]]:
        """Return the ranges on the wire that belong to no layer."""
        edges = sorted((place for places in self._places for place, _ in places), key=lambda place: int(place.start))
        ends = [place.stop for place in edges]
        begins = [*(place.start for place in edges[1:]), self.elements]
        return [(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin]

    def layer(self, layer: int, wire: Callable[[int, int], Floats]) -> Floats:
        """Return a layer's values; `wire` returns the values of a range on the wire."""
        parts = [wire(place.start, place.stop) for place, _ in self._places[layer]]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @cached_property
    def _parameters(self) -> Floats:
        return np.empty(self._layers[-1].end, np.float32)

    def parameters(self, wire: Floats) -> Floats:
        """Return the wire's values in the order of the parameters, valid until the next call."""
        for places in self._places:
            for place, elements in places:
                self._parameters[elements] = wire[place]
        return self._parameters
