"""Orders of a backward pass, in which weight gradients need not follow the error terms that they are made from.

The error term of layer i's input is that of layer i - 1's output, so error terms come from the last layer to the first;
the weight gradient of a layer needs the error term of its output alone.

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
    """Layer by layer from the last one, each weight gradient before the error term; `front` changes nothing."""
    return _down(layers, 0)


def front_first(layers: int, front: int) -> list[Step]:
    """All error terms, then the weight gradients of the `front` first layers from the first one on, then those of the
    others from the last one down (source 001).
    """
    return _errors(layers, 1) + _weights(front) + [Step("weight", layer) for layer in range(layers - 1, front - 1, -1)]


def late_front(layers: int, front: int) -> list[Step]:
    """As usual down to layer `front`, then the error terms of the layers before it, then their weight gradients from
    the first one on.

    With `front` = 0 this is the usual order, and with all layers the source's with all layers.
    """
    return _down(layers, front) + _errors(front, 1) + _weights(front)


def _down(layers: int, front: int) -> list[Step]:
    """Both steps of each layer from the last one down to `front`."""
    steps = [Step(kind, layer) for layer in range(layers - 1, front - 1, -1) for kind in ("weight", "error")]
    return [step for step in steps if step != ("error", 0)]


def _errors(end: int, begin: int) -> list[Step]:
    return [Step("error", layer) for layer in range(end - 1, begin - 1, -1)]


def _weights(front: int) -> list[Step]:
    return [Step("weight", layer) for layer in range(front)]
