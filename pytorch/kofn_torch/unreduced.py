"""Detects backward passes whose gradients DistributedDataParallel silently leaves unreduced."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kofn_torch.errors import TorchError

REMEDY = (
    "DDP reduces one backward pass for each forward pass of its own, outside of no_sync(): call the"
    " DistributedDataParallel, not its module, and convert the module (to(), double()) before"
)


class UnreducedPasses:
    """The passes of `model` that give `parameters`, by name, a gradient of this worker's batch alone.

    One such pass after a reduced pass may come from a penalty that is equal at all workers. Any other such pass is a
    TorchError.
    """

    def __init__(self, model: DistributedDataParallel, parameters: Mapping[str, nn.Parameter]) -> None:
        self._model = model
        self._forwards, self._reduced = 0, False
        """Forward passes since the last reduction but one, and whether the last reduction came after them."""
        self._awaited, self._given = False, False
        """Whether DDP is to reduce the next pass, and whether that pass has begun."""
        self._reducing, self._apart = False, False
        """Whether a pass is being reduced, and whether no_sync() keeps all passes apart."""
        self._alone = set[int]()  # passes since the last reduced pass
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._accumulated, name))
            for name, parameter in parameters.items()
        ]

    def forward(self) -> None:
        """Note that the model has made a forward pass."""
        if torch.is_grad_enabled():
            if self._awaited and self._given:
                raise TorchError(f"the last backward pass gave gradients that stay with this worker: {REMEDY}")
            self._forwards = 1 if self._reduced else self._forwards + 1
            self._reduced, self._given = False, False
            self._awaited = self._model.require_backward_grad_sync
            self._apart = not self._awaited
            self._alone.clear()

    def reduced(self, *, last: bool) -> None:
        """Note that a bucket of the pass has come."""
        self._awaited, self._reduced, self._reducing = False, True, not last
        self._alone.clear()

    def _accumulated(self, name: str, parameter: nn.Parameter) -> None:
        self._given = True
        if self._apart or self._awaited or self._reducing:
            return
        self._alone.add(torch._C._current_graph_task_id())
        if self._forwards != 1 or len(self._alone) > 1:
            raise TorchError(f"{name} has a gradient that stays with this worker: {REMEDY}")
