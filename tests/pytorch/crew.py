"""Trainings in PyTorch at a real switch: each worker is a thread with a socket in its own namespace.

Each model has a process group of one, so that workers communicate only through the switch.
"""

import copy
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from kofn_common.config.compress import CompressSection
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.collectives.in_network import Nobody
from kofn_host.compression.encoder import Encoder
from kofn_host.errors import HostError
from kofn_host.protocol.results import BlockId, Result
from kofn_host.training import Agent, JobCoding
from kofn_host.transport.event_loop import EventLoop
from kofn_host.workload import ReplicaState
from kofn_torch.process_group import SwitchGroup
from kofn_torch.replica import ModelReplica
from tests.pytorch import devices
from tests.system.collectives.switched import EMBEDDED, HOSTS, Place, beneath_the_model, started

T = TypeVar("T")


@dataclass
class SwitchedJob:
    """A TorchJob without a controller; peers are asked directly."""

    config: Config
    rank: int
    metrics: Path
    place: Place
    peers: "Crew"
    give_up_s: float
    reports: list[kofn_pb2.Report] = field(default_factory=list)
    left: str | None = None

    def join(self, coding: JobCoding, replica: ModelReplica, group: Any) -> Agent:
        self.replica = replica
        self.agent = Agent(
            self.place.job,
            Encoder.of(coding, CompressSection(), self.rank),
            self.place.transport(self.rank),
            give_up_s=self.give_up_s,
        )
        replica.start(self.place.first_iteration - 1)
        self.peers.loop.run(self.agent.start(self.place.first_iteration, self.place.generation, self.peers))
        self.peers.come.wait(30)
        return self.agent

    def report(self, report: kofn_pb2.Report) -> None:
        self.reports.append(report)

    def fail(self, error: HostError) -> None:
        async def fail() -> None:
            self.agent.fail(error)

        self.peers.loop.spawn(fail())

    def leave(self, reason: str) -> None:
        self.left = reason


class Crew(Nobody):
    """All workers' jobs; they end together with the crew, so that late workers can ask the others."""

    def __init__(self, place: Place, iterations: int, folder: Path, workers: int, give_up_s: float) -> None:
        self.first = place.first_iteration
        run = {"max_iterations": self.first - 1 + iterations}
        config = Config.of({"job": {"workers": workers}, "run": run, "model": {"compute_ms": 0}})
        self.loop, self.come = EventLoop(), threading.Barrier(workers)
        self.jobs = [
            SwitchedJob(config, rank, folder / f"worker-{rank}.jsonl", place, self, give_up_s)
            for rank in range(workers)
        ]

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        for job in self.jobs:
            yield list(job.agent.protocol.results(first, last))

    async def state(self) -> ReplicaState | None:
        return max((job.replica.state() for job in self.jobs), key=lambda state: state.iteration if state else 0)

    async def report_ahead(self, block: BlockId, generation: int) -> None:
        raise AssertionError(f"{block} of generation {generation}: no packet is damaged here")

    def all(self, work: Callable[[SwitchedJob], T]) -> list[T]:
        """Run the work for each job in a thread and return the results by rank."""
        with ThreadPoolExecutor(len(self.jobs)) as pool:
            return list(pool.map(work, self.jobs))

    def close(self) -> None:
        for job in self.jobs:
            if hasattr(job, "agent"):
                self.loop.run(job.agent.close())
        self.loop.close()


@contextmanager
def crew(folder: Path, iterations: int, *, k: int = HOSTS, give_up_s: float = 20.0) -> Iterator[Crew]:
    switch = started(EMBEDDED)
    switch.set_k(k)
    made = Crew(switch.place(()), iterations, folder, HOSTS, give_up_s)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def crew_at_the_model(folder: Path, iterations: int, workers: int, *, k: int) -> Iterator[Crew]:
    """Yield a crew of any number of workers, at the slot model in place of a switch."""
    with beneath_the_model(workers, (), k=k) as place:
        made = Crew(place, iterations, folder, workers, 20.0)
        try:
            yield made
        finally:
            made.close()


_making = threading.Lock()


def parameters_of(model: torch.nn.Module) -> bytes:
    return b"".join(each.detach().float().cpu().numpy().tobytes() for each in model.parameters())


def copied(model: torch.nn.Module) -> Any:
    return copy.deepcopy(model)


def loaded(model: torch.nn.Module) -> Any:
    """Return a copy that was saved and loaded."""
    kept = io.BytesIO()
    torch.save(model, kept)
    return torch.load(io.BytesIO(kept.getvalue()), weights_only=False)


def ddp(make: Callable[[], torch.nn.Module], **given: Any) -> DistributedDataParallel:
    """Return a DDP model with the same parameters in each thread, in a group of one unless another is given."""
    with _making:
        group_of_one()
        torch.manual_seed(0)
        module = devices.placed(make())
    return DistributedDataParallel(module, **given)  # may wait for other threads


def group_of_one() -> None:
    """Create the group of one for all models of this process without another group."""
    if not dist.is_initialized():
        devices.use_gloo()
        dist.init_process_group(devices.BACKEND, rank=0, world_size=1, store=dist.HashStore())


def gloo_group(store: dist.Store, rank: int, size: int) -> Any:
    """Return a thread's process group among those of other threads, like init_process_group()'s for a process."""
    group_of_one()
    devices.use_gloo()
    group: Any = SwitchGroup(store, rank, size, timedelta(seconds=20))
    group._set_group_name(f"thread-{rank}")
    world = dist.distributed_c10d._world
    world.pg_map[group], world.pg_names[group] = ("gloo", store), f"thread-{rank}"
    world.pg_group_ranks[group], world.pg_backend_config[group] = {0: rank}, "cpu:gloo"
    return group
