"""Finds parameters that a model reads before their layer's call. The first iteration is checked.

A schedule steps a layer's parameters right before the layer's call. An earlier read would get the values of the
previous iteration.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kofn_torch.errors import TorchError
from kofn_torch.split import TorchLayer


class EarlyReads(TorchDispatchMode):  # type: ignore[misc]  # no types of PyTorch's are read
    """The reads in the model's first forward pass. The model's hooks call begin(), call() and end()."""

    def __init__(self, layers: Sequence[TorchLayer]) -> None:
        super().__init__()
        self._layers = {id(parameter): at for at, layer in enumerate(layers) for parameter in layer.parameters}
        self._names = [layer.name for layer in layers]
        self._called, self._early = set[int](), set[int]()
        self._within = False
        self._begun_at: int | None = None

    def begin(self) -> None:
        if self._begun_at is None and torch.is_grad_enabled():
            self._begun_at = _sequence_number()
            self._within = True
            self.__enter__()

    def call(self, at: int) -> None:
        """Raise TorchError if a parameter of this layer was read before the layer's call."""
        if self._within:
            if at in self._early:
                raise self._error(at)
            self._called.add(at)

    def end(self) -> None:
        if self._within:
            self._within = False
            self.__exit__(None, None, None)

    def check(self, loss: torch.Tensor) -> None:
        """Raise TorchError if the loss depends on a parameter that was read before the model's first forward pass."""
        left, seen = [loss.grad_fn], set[Any]()
        while left:
            node = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            for child, _ in node.next_functions:
                at = self._layers.get(id(getattr(child, "variable", None)))
                if at is not None and node._sequence_nr() < (self._begun_at or 0):
                    raise self._error(at)
                left.append(child)

    def _error(self, at: int) -> TorchError:
        return TorchError(
            f"a parameter of {self._names[at]} must be read after its layer's call, got an earlier read, which would"
            " give the previous iteration's values: functions, penalties and other modules must read it later"
        )

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Any,
        given: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        read = {self._layers[id(value)] for value in tree_leaves((given, named)) if id(value) in self._layers}
        self._early |= read - self._called
        return function(*given, **(named or {}))


def _sequence_number() -> int:
    """Return a number between autograd's operations in this thread: earlier operations have smaller sequence numbers,
    later operations have larger ones."""
    number: int = torch.ones((), requires_grad=True).clone().grad_fn._sequence_nr()
    return number
