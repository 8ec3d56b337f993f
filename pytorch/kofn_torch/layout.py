"""The place of each parameter of a model in the job's gradient, which is one array: the last parameter first.

A backward pass computes the gradients of the last parameters first, and the values that are sent first should be the
first elements (docs/explanation/protocol.md). Each parameter has a place, not each bucket, because DDP rebuilds its
buckets after the first iteration.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from kofn_host.arrays import Floats
from kofn_torch.errors import TorchError
from kofn_torch.staging import device_of, on_host

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Ranges = list[tuple[int, int]]


class ParameterLayout:
    """The layout of the trained parameters of `module`, except those whose names are in `ignored`. Raises TorchError
    if a parameter is not supported."""

    def __init__(self, module: nn.Module, ignored: Collection[str] = ()) -> None:
        _check_modules(module)
        named = [
            (name, parameter)
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        self.device = device_of(dict(named))
        for name, parameter in named:
            _check(name, parameter)
        self.parameters = dict(reversed(named))
        ends = list(accumulate(parameter.numel() for parameter in self.parameters.values()))
        self._places = {
            id(parameter): (end - parameter.numel(), end)
            for parameter, end in zip(self.parameters.values(), ends, strict=True)
        }
        self.elements = ends[-1] if ends else 0
        """The number of elements of the gradient."""
        if not self.elements:
            raise TorchError("the model must have at least one parameter that is trained, got none")

    def ranges(self, parameters: Iterable[nn.Parameter]) -> Ranges:
        """Return the parameters' places in the gradient, in the parameters' order. Neighbours share one range; empty
        parameters have none."""
        joined: Ranges = []
        for parameter in parameters:
            if id(parameter) not in self._places:
                raise TorchError(
                    "DDP reduces a parameter that the model did not have when kofn_torch was given the model"
                )
            begin, end = self._places[id(parameter)]
            if begin == end:
                continue
            if joined and joined[-1][1] == begin:
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        return joined

    def parts(self, values: Floats) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield each parameter with its part of a gradient (elements,), in the parameter's shape, strides and dtype."""
        for name, view in self.views(values):
            parameter = self.parameters[name]
            yield parameter, view.to(parameter.device, parameter.dtype)

    def views(self, values: npt.NDArray[np.generic]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield each parameter's name with a view of the parameter's part of `values` (elements or more,).

        The view has the parameter's shape and, if the parameter is dense, its strides: a bucket of DDP has the elements
        of a dense parameter in the order of memory.
        """
        whole = torch.from_numpy(values)
        for name, parameter in self.parameters.items():
            begin, end = self._places[id(parameter)]
            part, dense = whole[begin:end], _dense(parameter)
            yield name, part.as_strided(parameter.shape, parameter.stride()) if dense else part.view_as(parameter)

    def flat_parameters(self) -> list[Floats]:
        """Return each parameter's values as flat() does."""
        return [flat(parameter) for parameter in self.parameters.values()]

    def values(self) -> Floats:
        """Return a copy of all parameters' values, (elements,)."""
        return np.concatenate(self.flat_parameters())

    def load(self, values: Floats) -> None:
        """Set the parameters to `values`, which another worker's values() returned."""
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        for parameter, part in zip(self.parameters.values(), torch.from_numpy(values).split(sizes), strict=True):
            parameter.detach().copy_(part.view_as(parameter))

    @property
    def digest(self) -> int:
        """Return 31 bits that depend on names, shapes, strides and dtypes."""
        described = [
            (name, tuple(parameter.shape), parameter.stride(), str(parameter.dtype))
            for name, parameter in self.parameters.items()
        ]
        return zlib.crc32(repr(described).encode()) >> 1


def flat(parameter: torch.Tensor) -> Floats:
    """Return the values as a flat float32 array, without a copy if they are flat float32 already."""
    values: Floats = on_host(parameter).reshape(-1).contiguous().float().numpy()
    return values


def _dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill a piece of memory without gaps or overlaps. If they do, empty_like() makes a
    tensor with the same strides."""
    return bool(torch.empty_like(tensor, device="meta").stride() == tensor.stride())


def _check(name: str, parameter: nn.Parameter) -> None:
    if parameter.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TorchError(f"{name} must be one of {allowed}, got {str(parameter.dtype).removeprefix('torch.')}")


def _check_modules(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if getattr(part, "sparse", False):
            raise TorchError(f"{name} must have sparse=False, got sparse gradients: a switch sums whole blocks")
