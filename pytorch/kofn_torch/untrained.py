"""The part of a model that no gradient changes: frozen parameters and buffers, including buffers that are not
persistent."""

import zlib
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from kofn_torch.errors import TorchError
from kofn_torch.staging import device_of, on_host

Bytes = npt.NDArray[np.uint8]


class UntrainedState:
    """The tensors of `module` apart from the parameters `trained` and those whose names are `ignored`."""

    def __init__(self, module: nn.Module, trained: Iterable[nn.Parameter], ignored: Collection[str] = ()) -> None:
        self._module, self._ignored = module, ignored
        self._trained = {id(parameter): parameter for parameter in trained}
        every = chain(module.named_parameters(), module.named_buffers())
        device_of({name: tensor for name, tensor in every if name not in ignored})

    def tensors(self) -> dict[str, torch.Tensor]:
        every = chain(self._module.named_parameters(), self._module.named_buffers())
        return {name: tensor for name, tensor in every if id(tensor) not in self._trained and name not in self._ignored}

    def check_trained(self, *, freezes: bool = False) -> None:
        """Raise TorchError if other parameters are trained now. With `freezes`, trained parameters may have been frozen
        since."""
        for name, parameter in self._module.named_parameters():
            known = id(parameter) in self._trained
            if parameter.requires_grad and not known and name not in self._ignored:
                raise TorchError(
                    f"{name} is trained, but was frozen or was another parameter when kofn_torch was given the model:"
                    " call requires_grad_() and load_state_dict(assign=True) before that, because no other worker gets"
                    " the gradient of this parameter"
                )
            if known and not parameter.requires_grad and not freezes:
                raise TorchError(
                    f"{name} was frozen after kofn_torch was given the model: call requires_grad_() before"
                )

    def values(self) -> Bytes:
        """Return the bytes of all tensors, concatenated."""
        return np.concatenate([np.empty(0, np.uint8), *(_bytes(*tensor) for tensor in self.tensors().items())])

    def load(self, values: Bytes) -> None:
        """Take the tensors from another worker's values()."""
        begin = 0
        for name, tensor in self.tensors().items():
            taken, end = torch.empty(tensor.shape, dtype=tensor.dtype), begin + tensor.nbytes
            _bytes(name, taken)[:] = values[begin:end]
            tensor.detach().copy_(taken)
            begin = end

    @property
    def digest(self) -> int:
        """Return 31 bits that depend on names, shapes and dtypes."""
        described = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in self.tensors().items()]
        return zlib.crc32(repr(described).encode()) >> 1


def caches(module: nn.Module) -> list[str]:
    """Return the names of buffers that are not persistent: a layer may rebuild them in another size."""
    return [
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    ]


def broadcasts_buffers(model: Any) -> bool:
    """Return whether DDP gives worker 0's buffers to all workers before each forward pass."""
    ddp = isinstance(model, DistributedDataParallel)
    return ddp and model.process_group.size() > 1 and bool(model.will_sync_module_buffers())


def check_statistics(module: nn.Module) -> None:
    """Raise TorchError for a layer that keeps statistics of this worker's batches."""
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.track_running_stats and part.training:
            raise TorchError(
                f"{name or type(part).__name__} keeps statistics of batches, which differ between workers: use"
                " GroupNorm, LayerNorm or track_running_stats=False, or call eval() first"
            )


def _bytes(name: str, tensor: torch.Tensor) -> Bytes:
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        raise TorchError(f"{name} must be dense and have values, got {tensor.layout} on {tensor.device}")
    values: Bytes = on_host(tensor).resolve_conj().resolve_neg().reshape(-1).view(torch.uint8).numpy()
    return values
