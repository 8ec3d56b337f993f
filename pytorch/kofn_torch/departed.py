"""The placeholder for a parameter's gradient that has left during the backward pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kofn_torch.errors import TorchError


class DepartedGradient(torch.Tensor):  # type: ignore[misc]  # no types of PyTorch's are read
    """A placeholder in the parameter's shape, without memory. Reading it, to clip it or to add to
    it, is a TorchError."""

    @staticmethod
    def __new__(cls, parameter: nn.Parameter, name: str) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, parameter.shape, dtype=parameter.dtype, device=parameter.device)

    def __init__(self, parameter: nn.Parameter, name: str) -> None:
        self.name_of_parameter = name

    def __repr__(self) -> str:
        return f"DepartedGradient({self.name_of_parameter})"

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, given: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        flat = [value for group in given for value in (group if isinstance(group, list | tuple) else [group])]
        name = next(value.name_of_parameter for value in flat if isinstance(value, cls))
        raise TorchError(
            f"the gradient of {name} has left in backward(): in stages 2 and 3 gradients cannot be clipped, and those"
            " of several batches, or of several reentrant checkpoints, cannot be added up; stage 1 can both"
        )
