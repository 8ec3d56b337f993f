"""Orders of a backward pass: weight gradients need not follow their error terms at once.

The error term of layer i's input is the error term of layer i - 1's output, so error terms are computed from the last
layer to the first.  A layer's weight gradient needs only the error term of the layer's output.

>>> usual(3, 0)
[weight(2), error(2), weight(1), error(1), weight(0)]
>>> front_first(4, 2)
[error(3), error(2), error(1), weight(0), weight(1), weight(3), weight(2)]
>>> late_front(4, 2)
[weight(3), error(3), weight(2), error(2), error(1), weight(0), weight(1)]
"""

from typing import Literal, NamedTuple


class Step(NamedTuple):
    """One layer's weight gradient, or the error term of its input."""

    kind: Literal["error", "weight"]
    layer: int

    def __repr__(self) -> str:
        return f"{self.kind}({self.layer})"


def usual(layers: int, front: int) -> list[Step]:
    """Return the layers from the last one down, a layer's weight gradient before its error term; `front` is unused."""
    return _down(layers, 0)


def front_first(layers: int, front: int) -> list[Step]:
    """Return all error terms, then the weight gradients of the front layers, then those of the other layers.

    The front layers are the first `front` layers, in ascending order; the others are in descending order (source 001).
    """
    return _errors(layers, 1) + _weights(front) + [Step("weight", layer) for layer in range(layers - 1, front - 1, -1)]


def late_front(layers: int, front: int) -> list[Step]:
    """Return the usual order down to layer `front`, then the error terms and the weight gradients of the front layers.

    The weight gradients of the front layers are in ascending order.  With `front` = 0 this is the usual order; if all
    layers are front layers it is front_first().
    """
    return _down(layers, front) + _errors(front, 1) + _weights(front)


def _down(layers: int, front: int) -> list[Step]:
    """Return both steps of each layer from the last one down to `front`."""
    steps = [Step(kind, layer) for layer in range(layers - 1, front - 1, -1) for kind in ("weight", "error")]
    return [step for step in steps if step != ("error", 0)]


def _errors(end: int, begin: int) -> list[Step]:
    return [Step("error", layer) for layer in range(end - 1, begin - 1, -1)]


def _weights(front: int) -> list[Step]:
    return [Step("weight", layer) for layer in range(front)]
