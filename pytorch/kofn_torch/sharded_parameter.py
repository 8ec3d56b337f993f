"""Parameters of ZeRO-3, whose memory is freed between their layer's passes; reading freed memory raises TorchError.

PyTorch itself would read the freed memory, which gives random values or a crash.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from kofn_torch.errors import TorchError

WITHOUT_MEMORY = frozenset(
    {
        *("size", "stride", "dim", "ndimension", "numel", "nelement", "element_size", "storage_offset", "get_device"),
        *("is_contiguous", "is_floating_point", "is_complex", "is_same_size", "requires_grad_", "untyped_storage"),
        *("register_hook", "register_post_accumulate_grad_hook", "retain_grad", "data_ptr", "__hash__", "__len__"),
    }
)
"""Functions that read no element."""

WITH_MEMORY = frozenset({"data", "T", "mT", "H", "mH", "real", "imag"})
"""Properties that give access to elements."""

OUTLIVING = frozenset({"numpy", "__array__", "__dlpack__"})
"""Functions whose result would outlive the memory."""

WRITING = frozenset(
    {
        *(
            f"__i{operator}__"
            for operator in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
        ),
        *("__ilshift__", "__irshift__", "__setitem__", "data.__set__"),
    }
)
"""Functions that write their first argument, beside those whose names end with an underscore."""


class ShardedTensor(torch.Tensor):  # type: ignore[misc]  # no types of PyTorch's are read
    """A parameter, or a view of a parameter, in memory that the parameter's layer frees."""

    name_of_parameter: str

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        if _freed(self):
            return f"{self.name_of_parameter}, sharded: whole_parameters() has the values of {tuple(self.shape)}"
        return str(super().__repr__(tensor_contents=tensor_contents))

    @classmethod
    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # tracing would call it
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        given: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            ours = [value for value in tree_leaves((given, named)) if isinstance(value, ShardedTensor)]
            called = _name(function)
            for tensor in ours:
                if called in OUTLIVING or (called not in WITHOUT_MEMORY and _freed(tensor)):
                    raise _unreadable(tensor.name_of_parameter)
            if _writes(called) and any(isinstance(value, ShardedTensor) for value in tree_leaves(given[:1])):
                raise _unreadable(ours[0].name_of_parameter)
            found = function(*given, **(named or {}))
            for tensor in ours:
                _mark_views(found, tensor)
        return found


class ShardedParameter(ShardedTensor, nn.Parameter):  # type: ignore[misc]
    """A parameter in memory that its layer frees."""


def guard(parameter: nn.Parameter, name: str) -> None:
    """Make reading the parameter an error while its storage is empty."""
    parameter.__class__ = ShardedParameter
    parameter.name_of_parameter = name


def unguard(parameter: nn.Parameter) -> None:
    parameter.__class__ = nn.Parameter


def _freed(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return bool(tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0)


def _writes(called: str) -> bool:
    """Return whether a function of this name writes its first argument, whose values would be lost."""
    in_place = called.endswith("_") and not called.endswith("__") and called not in WITHOUT_MEMORY
    return in_place or called in WRITING


def _mark_views(found: Any, of: ShardedTensor) -> None:
    """Mark views of a parameter, because they lose their memory together with the parameter."""
    memory = of.untyped_storage()._cdata
    for view in tree_leaves(found):
        if type(view) is torch.Tensor and view.layout == torch.strided and view.untyped_storage()._cdata == memory:
            view.__class__ = ShardedTensor
            view.name_of_parameter = of.name_of_parameter


def _name(function: Callable[..., Any]) -> str:
    """Return a function's name. For a property's getter, return the property's name if the property gives access to
    elements, else a name from WITHOUT_MEMORY."""
    name = getattr(function, "__name__", "")
    if name not in ("__get__", "__set__", "__delete__"):
        return name
    of = str(getattr(getattr(function, "__self__", None), "__name__", ""))
    if name == "__set__" and of == "data":
        return "data.__set__"
    return of if of in WITH_MEMORY else "size"


def _unreadable(name: str) -> TorchError:
    return TorchError(
        f"{name} is sharded: it must be read in its layer's passes or in whole_parameters() of the optimizer, and"
        " written before kofn_torch.zero()"
    )
