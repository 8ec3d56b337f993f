"""A base class for custom workloads with a PyTorch module (docs/howto/model.md); needs kofn[torch].

The module's parameters become parts of one float32 array, which NumPy and PyTorch share.  The job's collective sums the
gradients, and the module's own optimizer makes the steps.  Every worker uses one thread, so that steps and evaluations
are bit-identical.
"""

import io
from abc import abstractmethod
from collections.abc import Iterable

import numpy as np
import torch

from kofn_common.config.schema import Config
from kofn_host.arrays import Arrays, Floats
from kofn_host.workload.optimizer import Optimizer
from kofn_host.workload.workload import Workload

STATE = "torch"


class TorchWorkload(Workload):
    """The base class of workloads with a PyTorch module.

    A derived class has build_module, build_optimizer, loss and evaluate, which may use self.config and self.rank.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self.config, self.rank = config, rank
        torch.set_num_threads(1)
        torch.manual_seed(config.run.seed)
        self.module = self.build_module()
        self._flat = flat = _flatten(self.module)
        self.parameters = flat.numpy()
        self.optimizer = TorchOptimizer(self.module, self.build_optimizer())
        torch.manual_seed(config.run.seed * 1000 + rank)  # dropout differs between workers
        self.module.eval()
        self._buffers = {name: buffer.clone() for name, buffer in self.module.named_buffers()}

    @abstractmethod
    def build_module(self) -> torch.nn.Module:
        """Return the model, on the CPU, in float32; PyTorch's seed is run.seed."""

    @abstractmethod
    def build_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer of torch.optim over self.module.parameters()."""

    @abstractmethod
    def loss(self, iteration: int, batch: int) -> torch.Tensor:
        """Return the loss, a scalar, of this worker's `batch`-th data in an iteration."""

    def gradient(self, iteration: int, batch: int = 0) -> tuple[float, Floats]:
        self.module.train()
        loss = self.loss(iteration, batch)
        parameters = list(self.module.parameters())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        self._check_buffers()
        gradient: Floats = torch.cat([part.reshape(-1) for part in gradients]).numpy()
        self.module.eval()
        return float(loss.detach()), gradient

    def _check_buffers(self) -> None:
        """Raise TypeError if a buffer has changed: workers would evaluate differently."""
        buffers = dict(self.module.named_buffers())
        if changed := [name for name, before in self._buffers.items() if not torch.equal(before, buffers[name])]:
            raise TypeError(
                f"{changed[0]} must not change while a gradient is computed, since it is no parameter: it would differ"
                " between workers (use GroupNorm, LayerNorm or track_running_stats=False instead of batch statistics)"
            )


class TorchOptimizer(Optimizer):
    """An optimizer of torch.optim; its state is its state_dict()."""

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        sizes = [parameter.numel() for parameter in module.parameters()]
        self._gradient = torch.zeros(sum(sizes))
        for parameter, part in zip(module.parameters(), self._gradient.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def step(self, gradient: Floats) -> None:
        self._gradient.copy_(torch.from_numpy(np.ascontiguousarray(gradient)))
        self._optimizer.step()

    def state(self) -> Arrays:
        out = io.BytesIO()
        torch.save(self._optimizer.state_dict(), out)
        return {STATE: np.frombuffer(out.getvalue(), np.uint8)}

    def restore(self, state: Arrays) -> None:
        if STATE not in state:
            raise ValueError(f"a peer's optimizer must be one of PyTorch's, got {', '.join(state) or 'nothing'}")
        self._optimizer.load_state_dict(torch.load(io.BytesIO(state[STATE].tobytes()), weights_only=True))


def _flatten(module: torch.nn.Module) -> torch.Tensor:
    """Return a tensor of which all parameters become parts; TypeError unless they are float32 on the CPU."""
    parameters: Iterable[tuple[str, torch.nn.Parameter]] = list(module.named_parameters())
    for name, parameter in parameters:
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise TypeError(f"{name} must be torch.float32 on cpu, got {parameter.dtype} on {parameter.device}")
    flat = torch.cat([parameter.detach().reshape(-1) for _, parameter in parameters])
    start = 0
    for _, parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat
