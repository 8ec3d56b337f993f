"""Computes a module's weight gradients apart from its error terms, so that a schedule can say when to compute each.

A layer of a kind in SPLIT computes its outputs on a separate graph. A backward pass evaluates that graph twice: once
for the error term of the inputs, and once for the weight gradient, immediately or later. So the gradients are equal, to
the bit, to those of PyTorch's own kernels. Layers of other kinds compute both at once, as usual.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from kofn_torch.errors import TorchError
from kofn_torch.own_hook import OwnForward

SPLIT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.LayerNorm)
"""The kinds of layers that are split; each has one input tensor and one output tensor. Derived classes are not split,
nor layers whose weight is computed from other parameters (prune, weight_norm)."""

Timed = Callable[[str, int, float], object]
"""Called at the end of a layer's pass with its kind ("error", "weight"), layer and start (time.monotonic)."""


@dataclass(frozen=True, slots=True)
class TorchLayer:
    """A module that owns trained parameters."""

    name: str
    module: nn.Module
    parameters: tuple[nn.Parameter, ...]

    @property
    def splits(self) -> bool:
        return type(self.module) in SPLIT and {"weight", "bias"}.issuperset(self.module._parameters)


def layers_of(module: nn.Module) -> list[TorchLayer]:
    """Return the layers in the module's order. Raise TorchError if two layers share a parameter."""
    layers, owners = list[TorchLayer](), dict[int, str]()
    for name, owner in module.named_modules():
        trained = tuple(parameter for parameter in owner.parameters(recurse=False) if parameter.requires_grad)
        for parameter in trained:
            other = owners.setdefault(id(parameter), name)
            if other != name:
                raise TorchError(f"each parameter must belong to one layer, got one that {other} and {name} share")
        if trained:
            layers.append(TorchLayer(name or type(owner).__name__, owner, trained))
    if not layers:
        raise TorchError("the model must have at least one parameter that is trained, got none")
    return layers


class SplitBackward:
    """Splits the backward passes of layers. Their forward passes go through this object until close().

    `computed` is called with a layer once its whole gradient is in its parameters' `grad`; `timed` is called after each
    timed pass.
    """

    def __init__(self, layers: Sequence[TorchLayer], computed: Callable[[int], object], timed: Timed) -> None:
        self._layers, self._computed, self._timed = layers, computed, timed
        self.running = False
        """Whether this object runs a backward pass; in other passes layers give their gradients as usual."""
        self._later: frozenset[int] = frozenset()
        self._begun = set[int]()  # split layers that the backward pass has reached
        self._left = dict[int, Callable[[], None]]()
        self._added = set[int]()  # id() of each parameter whose part from autograd is complete
        self._own = dict[int, tuple[torch.Tensor, int]]()  # gradients of split layers' calls, with their versions
        self._reading = set[int]()  # layers of this pass whose gradients autograd has changed
        self._whole = set[int]()  # layers that were reported to `computed`
        self._shared: set[int] | None = None  # layers with parameters that are read outside of their call
        self._hooks = list(self._watched())
        for at, layer in enumerate(layers):
            if layer.splits:
                module = layer.module
                module.forward = OwnForward(module, partial(self._forward, at, module.forward))

    def backward(self, loss: torch.Tensor, later: Sequence[int]) -> None:
        """Compute the gradients of a loss. The weight gradients of layers `later`, if these are split, come after all
        error terms, in the order of `later`."""
        for layer in self._layers:
            for parameter in layer.parameters:
                parameter.grad = None
        for kept in (self._begun, self._added, self._own, self._whole):
            kept.clear()
        self._later = frozenset(later)
        self._reading.clear()
        self.running = True
        try:
            loss.backward()
            for at in later:
                if (weight := self._left.pop(at, None)) is not None:
                    weight()
        finally:
            self.running = False
            self._left.clear()
        self._shared = (self._shared or set()) | self._reading

    def name(self, at: int) -> str:
        """Return a layer's name."""
        return self._layers[at].name

    def close(self) -> None:
        """Restore the modules."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            if layer.splits:
                layer.module.__dict__.pop("forward", None)

    def _watched(self) -> Iterator[Any]:
        for at, layer in enumerate(self._layers):
            for parameter in layer.parameters:
                yield parameter.register_post_accumulate_grad_hook(partial(self._accumulate, at))

    def _accumulate(self, at: int, parameter: nn.Parameter) -> None:
        """Record that autograd has added its whole part to a gradient. The part is empty if only a split call reads the
        parameter."""
        if not self.running:
            raise TorchError(
                f"a parameter of {self._layers[at].name} gets a gradient outside of session.backward(loss), which takes"
                " the place of loss.backward()"
            )
        grad, own = parameter.grad, self._own.get(id(parameter))
        changed = grad is not None and (own is None or own[0] is not grad or own[1] != grad._version)
        if changed and at in self._whole:
            raise TorchError(
                f"a parameter of {self._layers[at].name} must get its whole gradient from its layer's call, as in the"
                " first backward pass, got a further part: from a reentrant checkpoint, or a read outside of the call"
            )
        if changed:
            self._reading.add(at)
        self._added.add(id(parameter))
        self._end(at)

    def _end(self, at: int) -> None:
        """Report a layer's gradient once it is whole."""
        added = self._added.issuperset(map(id, self._layers[at].parameters))
        computed = at not in self._begun or self._own.keys() >= set(map(id, self._layers[at].parameters))
        alone = self._shared is not None and at not in self._shared and at in self._begun
        if at not in self._whole and computed and (added or alone):
            self._whole.add(at)
            self._computed(at)

    def _forward(self, at: int, forward: Callable[..., torch.Tensor], *given: Any, **named: Any) -> torch.Tensor:
        parameters = self._layers[at].parameters
        single = not named and len(given) == 1 and isinstance(given[0], torch.Tensor)
        if not torch.is_grad_enabled() or not single or any(map(_hooked, parameters)):
            return forward(*given, **named)
        outputs: torch.Tensor = _Split.apply(self, at, forward, given[0], *parameters)
        return outputs

    def _usual(self, at: int, outputs: torch.Tensor, inputs: torch.Tensor | None, error: torch.Tensor) -> Any:
        """Return the gradients of inputs (None without inputs) and of parameters, all at once."""
        wanted = [*([] if inputs is None else [inputs]), *self._layers[at].parameters]
        found = torch.autograd.grad(outputs, wanted, error, retain_graph=True)
        return (None, *found) if inputs is None else found

    def _backward(self, at: int, weight: Callable[[], None]) -> bool:
        """Compute the weight gradient of a layer now, or note it for later; return whether it was computed."""
        if at in self._begun:
            raise TorchError(f"{self._layers[at].name} must be used once in a backward pass, got a second use")
        self._begun.add(at)
        if at in self._later:
            self._left[at] = weight
            return False
        weight()
        return True

    def _weight(self, at: int, outputs: torch.Tensor, error: torch.Tensor, *, last: bool) -> None:
        """Compute a weight gradient. With `last` the graph is not evaluated again, and its memory is freed."""
        began_s, parameters = time.monotonic(), self._layers[at].parameters
        gradients = torch.autograd.grad(outputs, parameters, error, retain_graph=not last)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            self._own[id(parameter)] = parameter.grad, parameter.grad._version
        self._timed("weight", at, began_s)
        self._end(at)

    def _error(self, at: int, outputs: torch.Tensor, inputs: torch.Tensor, error: torch.Tensor, *, last: bool) -> Any:
        began_s = time.monotonic()
        (found,) = torch.autograd.grad(outputs, inputs, error, retain_graph=not last)
        self._timed("error", at, began_s)
        return found


def _hooked(parameter: nn.Parameter) -> bool:
    """Return whether the script has a hook on the parameter's gradient, which a split pass would not call."""
    accumulated: Any = parameter._post_accumulate_grad_hooks
    return bool(parameter._backward_hooks) or len(accumulated or ()) > 1  # one hook is SplitBackward's


class _Split(torch.autograd.Function):  # type: ignore[misc]  # PyTorch says nothing of its type
    """A layer for autograd, which computes the error term only; SplitBackward computes the weight gradient."""

    @staticmethod
    def forward(ctx: Any, split: SplitBackward, at: int, forward: Any, inputs: torch.Tensor, *_: nn.Parameter) -> Any:
        ctx.split, ctx.at = split, at
        ctx.inputs = inputs.detach().requires_grad_(inputs.requires_grad)
        with torch.enable_grad():
            ctx.outputs = forward(ctx.inputs)
        return ctx.outputs.detach()

    @staticmethod
    def backward(ctx: Any, error: torch.Tensor) -> Any:
        split, at, outputs, inputs = ctx.split, ctx.at, ctx.outputs, ctx.inputs
        wanted = ctx.needs_input_grad[3]
        if torch.is_grad_enabled():
            raise TorchError(
                f"{split.name(at)} must not be differentiated with create_graph=True, as by a gradient penalty: a"
                " schedule takes one gradient of each layer"
            )
        if not split.running:
            return None, None, None, *split._usual(at, outputs, inputs if wanted else None, error)
        del ctx.outputs, ctx.inputs  # the later of the two evaluations frees them
        done = split._backward(at, partial(split._weight, at, outputs, error, last=at in split._later or not wanted))
        found = split._error(at, outputs, inputs, error, last=done) if wanted else None
        return None, None, None, found, *[None] * (len(ctx.needs_input_grad) - 4)
