"""A model's parameters in units. A unit is gathered and reduced as a whole: it is a flat array, and its parameters are
views of the array.

With sharded parameters (ZeRO-3), a unit's array has memory from the gather before a pass to the end of that pass.
Tensors that autograd saves for the backward pass are views of the array, so the unit is gathered again before autograd
uses them.
"""

import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from kofn_host.arrays import Floats, fingerprint
from kofn_host.errors import HostError
from kofn_host.training import check_finite
from kofn_torch.errors import TorchError
from kofn_torch.own_hook import OwnHook
from kofn_torch.sharded_parameter import guard, unguard
from kofn_torch.split import layers_of
from kofn_torch.staging import device_of, digests, on_host

Named = list[tuple[str, nn.Parameter]]


class Arriving(Protocol):
    """A unit whose elements are on their way."""

    def result(self) -> Floats: ...


class LayerParameters:
    """The parameters `named` of a unit, in order, with `chunk` elements for each of `workers`."""

    def __init__(self, named: Named, workers: int) -> None:
        self.named, self.sizes = named, [parameter.numel() for _, parameter in named]
        self.size = sum(self.sizes)
        self.padded = -(-self.size // workers) * workers
        self.device = named[0][1].device
        self.flat = torch.zeros(self.padded, device=self.device)
        self._places = [*accumulate(self.sizes, initial=0)]
        with torch.no_grad():
            self._views = self._parts(self.flat)
            for (_, parameter), view in zip(named, self._views, strict=True):
                view.copy_(parameter)
                parameter.data = view
        self._lent, self._lent_parts = torch.empty(0), list[torch.Tensor]()
        self._lent_hash: Hashable = None

    def take_gradient(self) -> torch.Tensor:
        """Return the gradients of all parameters (size,), and remove them from the parameters.

        Raises TorchError if a gradient is missing.
        """
        flat = torch.empty(self.size, device=self.device)
        for (name, parameter), begin, size in zip(self.named, self._places, self.sizes, strict=False):
            if parameter.grad is None:
                raise TorchError(
                    f"{name} must have a gradient, got none: every parameter that is trained must be in the loss, and"
                    " backward() comes before step()"
                )
            flat[begin : begin + size] = parameter.grad.reshape(-1)
            parameter.grad = None
        return flat

    def finite(self, gradient: torch.Tensor) -> Floats:
        """Return the gradient (size,), in main memory. Raise GradientError, which names a parameter, if the gradient is
        not finite."""
        found: Floats = on_host(gradient).numpy()
        for (name, _), begin, size in zip(self.named, self._places, self.sizes, strict=False):
            check_finite(found[begin : begin + size], of=f" of {name}")
        return found

    @property
    def held(self) -> bool:
        """Whether the unit has memory."""
        return self.nbytes > 0

    @property
    def nbytes(self) -> int:
        found: int = self.flat.untyped_storage().nbytes()
        return found

    def fill(self, values: Floats) -> None:
        """Give the parameters the values (padded,)."""
        storage = self.flat.untyped_storage()
        if not self.held:
            storage.resize_(4 * self.padded)
        with torch.no_grad():
            self.flat.copy_(torch.from_numpy(values.reshape(-1)))

    def seal(self) -> None:
        """Remember hashes of the parameters, so that `written` reports later changes. The unit must keep its memory."""
        self._sealed = self._hashes()

    @property
    def written(self) -> str | None:
        """Return the name of a parameter that was changed, also through its `data`, or moved in memory since seal();
        None if no parameter was."""
        for (name, parameter), view, sealed, now in zip(
            self.named, self._views, self._sealed, self._hashes(), strict=True
        ):
            if now != sealed or not _at(parameter, view):
                return name
        return None

    def _hashes(self) -> list[Hashable]:
        return [_hash(view) for view in self._views]

    def discard(self) -> None:
        """Free the unit's memory."""
        self.flat.untyped_storage().resize_(0)

    def guard(self) -> None:
        """Make reading a parameter without memory an error."""
        for (name, parameter), view in zip(self.named, self._views, strict=True):
            parameter.data = view
            guard(parameter, name)

    def lend(self, values: Floats) -> None:
        """Give the parameters these values (padded,) until take_back(); their views stay readable."""
        self._lent = torch.from_numpy(values.reshape(-1)).to(self.device)
        self._lent_hash, self._lent_parts = _hash(self._lent), self._parts(self._lent)
        for (_, parameter), part in zip(self.named, self._lent_parts, strict=True):
            unguard(parameter)
            parameter.data = part

    def take_back(self) -> bool:
        """End lend(). Return whether the lent values are unchanged and no parameter was moved in memory."""
        there = (_at(parameter, part) for (_, parameter), part in zip(self.named, self._lent_parts, strict=True))
        kept = _hash(self._lent) == self._lent_hash and all(there)
        self._lent, self._lent_parts = torch.empty(0), []
        self.guard()
        return kept

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return each parameter's view of the array `flat` (padded,)."""
        return [
            flat[begin : begin + size].view(parameter.shape)
            for (_, parameter), begin, size in zip(self.named, self._places, self.sizes, strict=False)
        ]


def _hash(tensor: torch.Tensor) -> Hashable:
    """Return a hash of a tensor's bits, computed on the tensor's device."""
    return fingerprint(tensor.numpy()) if tensor.device.type == "cpu" else tuple(digests([tensor]).tolist())


def _at(parameter: nn.Parameter, view: torch.Tensor) -> bool:
    """Return whether a parameter has the view's place in memory, dtype and strides."""
    placed, wanted = ((tensor.data_ptr(), tensor.dtype, tensor.stride()) for tensor in (parameter, view))
    return bool(placed == wanted)


def units_of(model: nn.Module, stage: int) -> list[Named]:
    """Return the units of all trained parameters: one unit in stage 1, else one unit for each module that owns trained
    parameters."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise TorchError("the model must have at least one parameter that is trained, got none")
    device_of(dict(named))
    for name, parameter in named:
        if parameter.dtype != torch.float32:
            raise TorchError(f"{name} must be float32, got {str(parameter.dtype).removeprefix('torch.')}")
    if stage == 1:
        return [named]
    if stage == 3:
        layers_of(model)  # refuses a parameter that two layers share
    units = dict[str, Named]()
    for name, parameter in named:
        units.setdefault(name.rpartition(".")[0], []).append((name, parameter))
    return list(units.values())


def digest_of(units: Sequence[Named]) -> int:
    """Return 31 bits that depend on names and shapes."""
    described = [(name, tuple(parameter.shape)) for unit in units for name, parameter in unit]
    return zlib.crc32(repr(described).encode()) >> 1


class GatheredLayers:
    """The layers of ZeRO-3. A layer's parameters have memory during the layer's passes; meanwhile the next layer's
    parameters are gathered.

    `gather` begins the gather of a unit. `computed` is called with each unit whose gradients are complete, and then the
    unit is discarded.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[LayerParameters],
        gather: Callable[[int], Arriving],
        computed: Callable[[int], object],
    ) -> None:
        self._units, self._gather, self._computed = units, gather, computed
        self._arriving = dict[int, Arriving]()
        self._order, self._known = list[int](), list[int]()  # of forward passes, in this step and in the last step
        self._left = [len(unit.named) for unit in units]
        self.peak_bytes = 0
        """The most bytes of parameters held at once."""
        self._all_lent = False
        self._memory = {unit.flat.untyped_storage()._cdata: at for at, unit in enumerate(units)}
        self._saving = list[saved_tensors_hooks]()
        number = {id(parameter): at for at, unit in enumerate(units) for _, parameter in unit.named}
        for module in model.modules():
            own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
            if own:
                at = number[id(own[0])]
                module.register_forward_pre_hook(OwnHook(partial(self._before_forward, at)), prepend=True)
                module.register_forward_hook(OwnHook(partial(self._after_forward, at)), always_call=True)
                for parameter in own:
                    parameter.register_post_accumulate_grad_hook(partial(self._accumulated, at))
        for unit in units:
            unit.discard()
            unit.guard()

    def begin(self) -> None:
        """Begin after a step has changed the parameters: discard the units that were gathered before."""
        for work in self._arriving.values():
            work.result()
        self._arriving.clear()
        self._known, self._order = self._order, []
        for unit in self._units:
            unit.discard()

    def lend_all(self) -> None:
        """Gather all units, so that all parameters have values until take_back_all()."""
        self._all_lent = True
        for at, unit in enumerate(self._units):
            unit.lend((self._arriving.pop(at, None) or self._gather(at)).result())
        self.peak_bytes = max(self.peak_bytes, sum(4 * unit.padded for unit in self._units))

    def take_back_all(self) -> list[str]:
        """Discard the units of lend_all(); return the layers whose parameters were written meanwhile."""
        self._all_lent = False
        return [unit.named[0][0] for unit in self._units if not unit.take_back()]

    # -- hooks

    def _before_forward(self, at: int, *_: Any) -> None:
        if torch.is_grad_enabled() and at not in self._order:
            self._order.append(at)
        self._bring(at, self._next(at, 1))
        hooks = saved_tensors_hooks(*self._saves())
        self._saving.append(hooks)
        hooks.__enter__()

    def _after_forward(self, at: int, *_: Any) -> None:
        if self._saving:  # empty if _before_forward() has failed
            self._saving.pop().__exit__(None, None, None)
        if torch._C._current_graph_task_id() < 0:  # a backward pass that recomputes a layer still needs the unit
            self._drop(at)

    def _saves(self) -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]:
        """Return hooks that gather a unit again when autograd uses tensors saved from it; other
        tensors pass unchanged."""
        outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
        outer_pack, outer_unpack = outer or (_itself, _itself)

        def pack(tensor: torch.Tensor) -> Any:
            at = self._memory.get(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None
            return at, (outer_pack(tensor) if at is None else tensor)

        def unpack(packed: Any) -> Any:
            at, saved = packed
            if at is None:
                return outer_unpack(saved)
            self._bring(at, self._next(at, -1))
            return saved

        return pack, unpack

    def _accumulated(self, at: int, parameter: nn.Parameter) -> None:
        self._left[at] -= 1
        if self._left[at] == 0:
            self._left[at] = len(self._units[at].named)
            self._computed(at)
            self._drop(at)

    # -- memory

    def _next(self, at: int, step: int) -> int | None:
        """Return the unit that follows in this pass, if an earlier pass has shown the order."""
        order = self._known or self._order
        if at not in order:
            return None
        place = order.index(at) + step
        return order[place] if 0 <= place < len(order) else None

    def _bring(self, at: int, following: int | None) -> None:
        """Wait until a unit has memory, and begin the gather of the unit `following`."""
        if self._all_lent:
            return
        unit = self._units[at]
        if not unit.held:
            try:
                unit.fill((self._arriving.pop(at, None) or self._gather(at)).result())
            except HostError as error:
                error.add_note(
                    f"while {unit.named[0][0]} was gathered: in stage 3 all workers must call the same layers,"
                    " equally often and in the same order, also in evaluations"
                )
                raise
        if following is not None and not self._units[following].held and following not in self._arriving:
            self._arriving[following] = self._gather(following)
        arriving = sum(4 * self._units[number].padded for number in self._arriving)
        self.peak_bytes = max(self.peak_bytes, arriving + sum(unit.nbytes for unit in self._units))

    def _drop(self, at: int) -> None:
        if not self._all_lent:
            self._units[at].discard()


def _itself(saved: Any) -> Any:
    return saved


def values_of(units: Sequence[LayerParameters]) -> Iterator[Floats]:
    """Yield a copy of each unit's parameters, (size,)."""
    for unit in units:
        yield on_host(unit.flat[: unit.size].clone()).numpy()


def joined(units: Sequence[LayerParameters]) -> Floats:
    """Return all parameters (elements,)."""
    return np.concatenate([*values_of(units)])
