"""Hooks that kofn_torch adds to a model, and that are left out when the model is copied, saved and compiled."""

from collections.abc import Callable
from typing import Any

import torch


class OwnHook:
    """A hook of one model. A deepcopy() of the model, or a loaded model, has a hook that does nothing."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @torch._disable_dynamo  # type: ignore[untyped-decorator]  # torch.compile() would trace what the hook calls
    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._function(*given, **named)

    def __reduce__(self) -> Any:
        return _hook_of_a_copy, ()


class OwnForward(OwnHook):
    """A module's forward() in place of its class's forward(). A copy of the module has its class's forward() again."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._module = module

    def __reduce__(self) -> Any:
        return getattr, (self._module, "forward")


def _hook_of_a_copy() -> Callable[..., None]:
    return _nothing


def _nothing(*given: object, **named: object) -> None:
    """Do nothing, in a hook's place."""
