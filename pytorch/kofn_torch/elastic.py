"""An optimizer that keeps up with the fastest k of n workers: parameters stay bit-identical to the other workers'.

After its own step a slow worker catches up: for each iteration that it has missed, in order, it steps the optimizer
with the iteration's mean, and steps the scheduler.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.join import Joinable
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from kofn_host.arrays import Floats
from kofn_host.training import Aggregate, Step, Update
from kofn_host.workload import ReplicaState
from kofn_torch.errors import TorchError
from kofn_torch.hyperparameters import Hyperparameters
from kofn_torch.replica import Stateful
from kofn_torch.session import Session
from kofn_torch.untrained import broadcasts_buffers, check_statistics

Callback = Callable[[], object]


class ElasticSteps:
    """All steps of `optimizer` in a session; the user makes one step after each backward pass. See elastic()."""

    def __init__(
        self,
        session: Session,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        *,
        before_step: Callback | None,
        after_step: Callback | None,
    ) -> None:
        self._session, self._optimizer, self._scheduler = session, optimizer, scheduler
        self._before_step, self._after_step = before_step or _nothing, after_step or _nothing
        self._buffers = _buffers(session.model)
        self._epoch = epoch_of(scheduler)
        self._rates = Hyperparameters(optimizer)
        self._applying = False
        self._updates: Sequence[Update] = ()
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    # -- around a step that the user makes

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, keywords: dict[str, Any]) -> None:
        if self._applying:
            return
        if len(args) > 1 or keywords.get("closure"):  # args[0] is the optimizer
            raise TorchError("step() must have no closure, which would need several gradients a step")
        self._own, self._updates = self._session.ended()
        self._check(self._updates[0])
        self._session.replica.begin_change()
        self._before_step()

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, keywords: dict[str, Any]) -> None:
        if self._applying:
            return
        self._applying = True
        first, *later = self._updates
        try:
            self._took(first, self._own)
            self._apply_all(later)
            while missed := self._session.missed():
                self._apply_all(missed)
        finally:
            self._applying = False
            self._session.replica.end_change()
        self._session.report(self._own, self._updates)

    # -- one iteration

    def _apply_all(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self._apply(update)

    def _apply(self, update: Update) -> None:
        """Apply an iteration that ended without this worker."""
        if isinstance(update, Aggregate):
            self._fill(update.mean)
            self._before_step()
            self._optimizer.step()
        self._took(update, None)

    def _took(self, update: Update, own: Step | None) -> None:
        """Note the step of an update. If the update is a whole replica, it replaces the step just made."""
        if isinstance(update, ReplicaState):
            self._session.replica.restore(update)
            self._buffers = _buffers(self._session.model)
            self._session.jumped()
        else:
            if self._scheduler is not None:
                self._scheduler.step()
            self._session.applied(update, own, self._after_step)
        self._epoch = epoch_of(self._scheduler)
        self._rates.keep()

    def _fill(self, mean: Floats) -> None:
        """Put the mean into the parameters' gradients, as DDP does; reuse the memory of existing gradients."""
        for parameter, part in self._session.layout.parts(mean):
            if parameter.grad is None:
                parameter.grad = part.clone()
            else:
                parameter.grad.detach().copy_(part)

    # -- changes that would make replicas differ

    def _check(self, update: Update) -> None:
        if epoch_of(self._scheduler) != self._epoch:
            raise TorchError("the scheduler must not be stepped: elastic() steps it after every iteration")
        if (name := self._rates.changed) is not None:
            raise TorchError(
                f"{name} of the optimizer was changed between two steps: only elastic()'s scheduler or before_step may"
                " change it, because these run in every iteration, also in a missed iteration"
            )
        if (now := _buffers(self._session.model)) != self._buffers:
            changed = next(name for name in now if now[name] != self._buffers.get(name))
            raise TorchError(
                f"{changed} must not change while a gradient is computed, because buffers would differ between workers:"
                " use GroupNorm, LayerNorm or track_running_stats=False instead of batch statistics"
            )
        if isinstance(update, Aggregate):
            self._session.left_gradients.check(update.mean)


def check_elastic(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Raise TorchError for settings that k of n does not permit, or that would make replicas differ."""
    check_optimizer(model, optimizer, scheduler)
    check_statistics(model.module)
    if model.find_unused_parameters:
        raise TorchError(
            "find_unused_parameters must be False, got True, which asks all workers after every backward pass"
        )
    if broadcasts_buffers(model):
        raise TorchError(
            "broadcast_buffers must be False, got True: DDP would broadcast buffers before every forward pass"
        )


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Raise TorchError for an optimizer that needs more than one mean an iteration."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TorchError(f"the optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    own = {id(parameter) for parameter in model.parameters()}
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.requires_grad and id(parameter) not in own:
            raise TorchError(
                "the optimizer must have only the model's parameters, got another parameter of shape"
                f" {tuple(parameter.shape)}: each worker would step it with a gradient of its own"
            )
    if not (scheduler is None or isinstance(scheduler, LRScheduler) or hasattr(scheduler, "last_epoch")):
        raise TorchError(
            f"the scheduler must be one of torch.optim.lr_scheduler, or None, got a {type(scheduler).__name__}"
        )
    if isinstance(optimizer, Joinable):
        raise TorchError(
            f"the optimizer must not wait for all workers in every step, as a {type(optimizer).__name__} does"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TorchError("the optimizer's step() must take no closure, got LBFGS, which needs several gradients a step")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TorchError(
            "the scheduler must follow iterations, got ReduceLROnPlateau, which needs each worker's own loss"
        )


def epoch_of(scheduler: Any) -> Any:
    """Return the number of steps of a scheduler, or of each part of a ChainedScheduler; None without one."""
    if (parts := getattr(scheduler, "_schedulers", None)) is not None:
        return [epoch_of(part) for part in parts]
    return None if scheduler is None else scheduler.last_epoch


def named_parts(optimizer: torch.optim.Optimizer, scheduler: Any, also: Iterable[Stateful]) -> dict[str, Stateful]:
    """Return the parts of a replica other than the parameters."""
    parts: dict[str, Stateful] = {"optimizer": optimizer}
    if scheduler is not None:
        parts["scheduler"] = scheduler
    return parts | {f"also-{number}": part for number, part in enumerate(also)}


def _buffers(model: DistributedDataParallel) -> dict[str, tuple[int, int]]:
    """Return each buffer's address and its number of changes in place."""
    return {name: (buffer.data_ptr(), buffer._version) for name, buffer in model.module.named_buffers()}


def _nothing() -> None:
    """Do nothing, in place of a callback."""
