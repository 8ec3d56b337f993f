"""The placeholder for a parameter's gradient that was sent during the backward pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kofn_torch.errors import TorchError


class DepartedGradient(torch.Tensor):  # type: ignore[misc]  # no types of PyTorch's are read
    """A placeholder in the parameter's shape, without memory. Reading it raises TorchError, for example when gradients
    are clipped or added up."""

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
            f"the gradient of {name} must not be read, because backward() has sent it: stages 2 and 3 can neither clip"
            " gradients nor add up gradients of several batches or several reentrant checkpoints; stage 1 can do both"
        )
