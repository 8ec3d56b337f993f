"""Finds gradients that a script changes between backward() and step(), which elastic() does not permit."""

import torch

from kofn_host.arrays import Floats
from kofn_torch.errors import TorchError
from kofn_torch.layout import ParameterLayout
from kofn_torch.staging import Staging, digests

CHANGED = (
    "a gradient must not be changed between backward() and step(), by clipping or a GradScaler for example: change the"
    " mean in elastic()'s before_step, which every worker calls with every mean"
)


class LeftGradients:
    """The gradients of `layout` as DDP left them. On the CPU, check() compares the gradients with the mean. On a
    device, check() compares them with the versions and digests that note() took."""

    def __init__(self, layout: ParameterLayout, staging: Staging | None) -> None:
        self._layout, self._staging = layout, staging
        self._versions, self._digests = list[tuple[int, int]](), torch.empty(0)

    def note(self) -> None:
        """Note the gradients of a device at the end of a backward pass."""
        self._versions, self._digests = self._versions_now(), digests(self._gradients())

    def check(self, mean: Floats) -> None:
        """Raise TorchError if gradients differ from the mean.

        The check does not wait for a device. So a change that PyTorch does not count, for example by a GradScaler, ends
        the session only later.
        """
        if self._staging is None:
            kept = all(
                parameter.grad is not None and torch.equal(parameter.grad, part)
                for parameter, part in self._layout.parts(mean)
            )
        else:
            kept = self._versions == self._versions_now()
        if not kept:
            raise TorchError(CHANGED)
        if self._staging is not None:
            self._staging.send("kept", digests(self._gradients()) == self._digests, _check)

    def _gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._layout.parameters.values() if parameter.grad is not None]

    def _versions_now(self) -> list[tuple[int, int]]:
        """Return the identity of each gradient, and the number of its changes in place."""
        return [(id(gradient), gradient._version) for gradient in self._gradients()]


def _check(kept: torch.Tensor) -> None:
    if not kept.all():
        raise TorchError(CHANGED)
