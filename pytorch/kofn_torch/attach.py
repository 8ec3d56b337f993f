"""The functions that attach a training to its job's switch, by one call on its model."""

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
    """Have a model's gradients averaged by the job's switch instead of its process group.

        model = DistributedDataParallel(model)
        kofn_torch.ddp_hook(model)

    Gradients leave bucket by bucket while backward goes on. This is for jobs whose k is n; with a smaller k a slow
    worker falls behind, which elastic() prevents. Without a `job`, the environment names the job
    (docs/reference/pytorch.md).

    Returns when all workers have joined. Raises TorchError for a model, process group or environment that does not
    work, AgentError when the controller refuses, or when nothing moves for a minute.
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
    """Do as ddp_hook(), with the fastest k of n workers, whose replicas stay equal to the bit.

        session = kofn_torch.elastic(model, optimizer, scheduler)
        while not session.done():
            optimizer.zero_grad()
            loss(model, next(batches)).backward()
            optimizer.step()

    A late worker applies the iterations that it has missed after its own step. So the loop runs until session.done(),
    not over a worker's own batches, and kofn steps the scheduler. `before_step` and `after_step` are called around
    every step, own or applied; clipping and moving averages belong there. `also` names further objects with a
    state_dict() that change in these calls. A rejoining worker starts from another worker's parameters and states.
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
    """Have gradients leave, and forward passes wait, layer by layer, as the job's [schedule] says.

        session = kofn_torch.schedule(model, optimizer, scheduler)
        while not session.done():
            loss = criterion(model(images), labels)
            session.backward(loss)
        session.close()

    `model` is in no DistributedDataParallel. session.backward() replaces loss.backward(). kofn calls optimizer.step()
    for each layer before its next forward pass, and steps the scheduler after each iteration. This is for jobs whose k
    is n. Weight gradients of Linear, Conv1d to Conv3d, Embedding and LayerNorm are computed when the schedule says, and
    weight gradients of other modules with their error terms. With `max_norm` the means are clipped by their global
    norm, in families that wait for all of them. Errors are those of ddp_hook().
    """
    if not isinstance(model, nn.Module):
        raise TorchError(f"the model is a {type(model).__name__}: a torch.nn.Module is needed")
    if isinstance(model, DistributedDataParallel):
        raise TorchError("the model is a DistributedDataParallel, which reduces by buckets: the module in it is needed")
    in_group = dist.is_initialized()
    group = (dist.get_rank(), dist.get_world_size()) if in_group else (0, 1)
    check_statistics(model)
    session = ScheduledSession(model, optimizer, scheduler, job or _job_of(group), max_norm)
    session.join()
    return session


def _job_of(group: tuple[int, int]) -> ControlledJob:
    """Return the job of the environment for a process group of this rank and size."""
    with place_errors():
        return ControlledJob(JobPlace.find(group))


def _session(model: DistributedDataParallel, job: TorchJob | None) -> Session:
    if not isinstance(model, DistributedDataParallel):
        raise TorchError(f"the model is a {type(model).__name__}: a DistributedDataParallel is needed")
    if model._comm_hooks:
        raise TorchError("the model must have no communication hook yet, DDP takes one")
    if model._delay_all_reduce_params:
        raise TorchError("delay_all_reduce_named_params must not be given: the process group reduces these")
    if model._use_python_reducer:
        raise TorchError('optimize_ddp must be True or False, got "python_reducer", which has no buckets')
    group = model.process_group.rank(), model.process_group.size()
    found = job or _job_of(group)
    if found.config.schedule.family is not None:
        raise TorchError("schedule.family is given: kofn_torch.schedule() trains by it, DDP has an order of its own")
    workers = found.config.job.workers
    if group[1] not in (1, workers):
        raise TorchError(
            f"WORLD_SIZE is {group[1]}, job.workers is {workers}: the same is needed, or 1 where each worker has a"
            " process group of its own"
        )
    if group[1] < workers and found.config.job.collective == "gloo":
        raise TorchError("job.collective is 'gloo', and WORLD_SIZE is 1: gloo sums in a process group of all workers")
    if group[1] == 1 and workers > 1 and model.find_unused_parameters:
        raise TorchError("find_unused_parameters=True needs all workers in one process group: WORLD_SIZE is 1")
    if not broadcasts_buffers(model):
        check_statistics(model.module)
    return Session(model, found)
