"""The functions that attach a training to its job's switch: the training calls one of them with its model."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kofn_host.worker import JobPlace
from kofn_torch.elastic import Callback, ElasticSteps, check_elastic, named_parts
from kofn_torch.errors import TorchError, place_errors
from kofn_torch.job import ControlledJob, TorchJob
from kofn_torch.replica import Stateful
from kofn_torch.scheduled import ScheduledSession
from kofn_torch.session import Session
from kofn_torch.untrained import broadcasts_buffers, check_statistics


def ddp_hook(model: DistributedDataParallel, *, job: TorchJob | None = None) -> Session:
    """Average a model's gradients in the job's switch instead of the model's process group.

        model = DistributedDataParallel(model)
        kofn_torch.ddp_hook(model)

    Gradients are sent bucket by bucket while the backward pass goes on. This function is for jobs with k = n. With a
    smaller k a slow worker's parameters fall behind; elastic() prevents that. Without a `job`, environment variables
    name the job (docs/reference/pytorch.md).

    Returns when all workers have joined. Raises TorchError if the model, the process group or the environment is not
    supported, and AgentError if the controller refuses this worker, or if the job makes no progress for a minute.
    """
    session = _session(model, job)
    session.join()
    return session


def elastic(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    *,
    before_step: Callback | None = None,
    after_step: Callback | None = None,
    also: Iterable[Stateful] = (),
    job: TorchJob | None = None,
) -> Session:
    """Average the gradients of the fastest k of n workers, as ddp_hook() does; all replicas stay equal to the bit.

        session = kofn_torch.elastic(model, optimizer, scheduler)
        while not session.done():
            optimizer.zero_grad()
            loss(model, next(batches)).backward()
            optimizer.step()

    In optimizer.step() a late worker also makes the steps of the iterations that it has missed. So the loop runs until
    session.done(), not over a fixed number of batches, and kofn steps the scheduler. kofn calls `before_step` before
    every step and `after_step` after it, also for missed iterations; these functions may clip the means or update
    moving averages. `also` lists further objects, each with a state_dict(), that the two functions change. A rejoining
    worker starts from another worker's parameters and states.
    """
    session = _session(model, job)
    check_elastic(model, optimizer, scheduler)
    session.replica.parts = named_parts(optimizer, scheduler, also)
    session.join()
    ElasticSteps(session, optimizer, scheduler, before_step=before_step, after_step=after_step)
    return session


def schedule(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    *,
    max_norm: float | None = None,
    job: TorchJob | None = None,
) -> ScheduledSession:
    """Send gradients layer by layer, and let each layer's forward pass wait for its mean, as the job's [schedule] says.

        session = kofn_torch.schedule(model, optimizer, scheduler)
        while not session.done():
            loss = criterion(model(images), labels)
            session.backward(loss)
        session.close()

    `model` must not be wrapped in DistributedDataParallel. session.backward() replaces loss.backward(). kofn calls
    optimizer.step() for each layer before its next forward pass, and steps the scheduler after each iteration. This
    function is for jobs with k = n. Weight gradients of Linear, Conv1d to Conv3d, Embedding and LayerNorm are computed
    when the schedule says; the weight gradients of another module are computed together with the gradient of its input.
    With `max_norm` the means are clipped by the norm of all means together; only families that wait for all means
    permit that. Errors are raised as by ddp_hook().
    """
    if not isinstance(model, nn.Module):
        raise TorchError(f"the model must be a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        raise TorchError("the model must not be a DistributedDataParallel, which reduces by buckets: give model.module")
    in_group = dist.is_initialized()
    group = (dist.get_rank(), dist.get_world_size()) if in_group else (0, 1)
    check_statistics(model)
    session = ScheduledSession(model, optimizer, scheduler, job or _job_of(group), max_norm)
    session.join()
    return session


def _job_of(group: tuple[int, int]) -> ControlledJob:
    """Return the job that environment variables name, for a process group of this rank and size."""
    with place_errors():
        return ControlledJob(JobPlace.find(group))


def _session(model: DistributedDataParallel, job: TorchJob | None) -> Session:
    if not isinstance(model, DistributedDataParallel):
        raise TorchError(f"the model must be a DistributedDataParallel, got a {type(model).__name__}")
    if model._comm_hooks:
        raise TorchError("the model must have no communication hook yet: DDP calls only one hook")
    if model._delay_all_reduce_params:
        raise TorchError(
            "delay_all_reduce_named_params must not be given: the process group, not the switch, would reduce these"
            " parameters"
        )
    if model._use_python_reducer:
        raise TorchError('optimize_ddp must be True or False, got "python_reducer", which has no buckets')
    group = model.process_group.rank(), model.process_group.size()
    found = job or _job_of(group)
    if found.config.schedule.family is not None:
        raise TorchError(
            "schedule.family must not be given with DDP, which has its own order: call kofn_torch.schedule() instead"
        )
    workers = found.config.job.workers
    if group[1] not in (1, workers):
        raise TorchError(
            f"WORLD_SIZE must be job.workers ({workers}), or 1 if each worker has its own process group, got {group[1]}"
        )
    if group[1] < workers and found.config.job.collective == "gloo":
        raise TorchError(
            f"WORLD_SIZE must be job.workers ({workers}) with job.collective = 'gloo', which sums in a process group of"
            f" all workers, got {group[1]}"
        )
    if group[1] == 1 and workers > 1 and model.find_unused_parameters:
        raise TorchError(
            f"WORLD_SIZE must be job.workers ({workers}) with find_unused_parameters=True, which needs all workers in"
            f" one process group, got {group[1]}"
        )
    if not broadcasts_buffers(model):
        check_statistics(model.module)
    return Session(model, found)
