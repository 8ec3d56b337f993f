"""A controller without a switch, and workers that attach by gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from kofn_common.config.job import JobSection
from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc import kofn_pb2_grpc
from kofn_common.rpc.security import CONTROLLER, Credentials, channel
from kofn_controller.job.jobs import Jobs
from kofn_controller.job.journal import Journal
from kofn_controller.job.service import serve
from kofn_controller.job.session import JobSession
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.slots import Slots, unwritten
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_controller.p4runtime.topology import PortMap, TopologyHost, UplinkPorts
from kofn_controller.policy.control_loop import ControlLoop
from tests.waiting import PATIENCE_S

NO_SWITCH = "127.0.0.1:1"


def star(hosts: int) -> tuple[TopologyHost, ...]:
    return tuple(
        TopologyHost(name=f"h{rank + 1}", rank=rank, mac=0x080000000001 + rank, ip=0x0A000001 + rank, port=rank + 1)
        for rank in range(hosts)
    )


def tree(racks: int, each: int) -> PortMap:
    """Return a tree's topology: hosts at ports 1, 2, ... of each leaf, the root at the next, leaves at the root's ports
    1, 2, ...
    """
    hosts = tuple(
        TopologyHost(
            name=f"h{rank + 1}",
            rank=rank,
            mac=0x080000000101 + 256 * (rank // each) + rank % each,
            ip=0x0A000101 + 256 * (rank // each) + rank % each,
            port=rank % each + 1,
            rack=rank // each,
        )
        for rank in range(racks * each)
    )
    return PortMap(hosts=hosts, uplinks=tuple(UplinkPorts(leaf=each + 1, root=rack + 1) for rack in range(racks)))


@dataclass(kw_only=True)
class Running:
    jobs: Jobs
    address: str
    channel: grpc.aio.Channel

    @property
    def session(self) -> JobSession:
        return self.jobs.all[0]

    @property
    def inspector(self) -> Any:
        return kofn_pb2_grpc.InspectorStub(self.channel)

    async def status(self, job: int = 0) -> pb.Status:
        answer: pb.Status = await self.inspector.GetStatus(pb.StatusRequest(job=job))
        return answer

    def worker(self, rank: int, *, job: int = 1, line: grpc.aio.Channel | None = None) -> "Worker":
        call = kofn_pb2_grpc.CoordinatorStub(line or self.channel).Attach()
        return Worker(rank=rank, job=job, call=call)

    async def start_all(self, job: int = 1, ranks: Iterable[int] | None = None) -> list["Worker"]:
        """Attach these workers (None: all) and wait for their welcomes."""
        session = self.jobs.sessions[job]
        workers = [self.worker(rank, job=job) for rank in ranks or range(session.job.workers)]
        for worker in workers:
            await worker.hello()
        for worker in workers:
            await worker.expect("welcome")
        return workers


@dataclass(kw_only=True)
class Worker:
    rank: int
    job: int
    call: Any

    async def hello(
        self, iteration: int = 0, generation: int = 0, address: str | None = None, **checkpoint: Any
    ) -> None:
        address = address or f"10.9.{self.job}.{self.rank}:50053"
        of = {"job": self.job, "rank": self.rank, "peer_address": address}
        hello = pb.Hello(**of, iteration=iteration, generation=generation, **checkpoint)  # type: ignore[arg-type]
        await self.say(hello=hello)

    async def report(self, iteration: int, first_block_s: float, **fields: Any) -> None:
        await self.say(report=pb.Report(iteration=iteration, first_block_s=first_block_s, **fields))

    async def finish(self, reason: str) -> None:
        await self.say(finished=pb.Finished(reason=reason))

    async def ready(self, iteration: int) -> None:
        await self.say(ready=pb.Ready(iteration=iteration))

    async def regrouped(self, generation: int) -> None:
        await self.say(regrouped=pb.Regrouped(generation=generation))

    async def say(self, **message: Any) -> None:
        await self.call.write(pb.WorkerMessage(**message))

    async def next(self) -> pb.ControllerMessage:
        """Return the controller's next message of any kind."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, f"stream of worker {self.rank} ended"
        return message

    async def expect(self, kind: Any) -> Any:
        """Return the next message that is not about others (peers, k, links); it must be of this kind."""
        news = {"peers", "decision", "link"} - {kind}
        while (message := await self.next()).WhichOneof("message") in news:
            continue
        assert message.HasField(kind), message
        return getattr(message, kind)


def setup(job: JobSection, hosts: int | None = None, *, journal: Journal | None = None, **policy: Any) -> JobSession:
    """Return a session whose slots no switch serves yet; its workers report no gradients, which
    `progress` would need.
    """
    control_loop = ControlLoop(workers=job.workers, policy=PolicySection(**{"objective": "throughput"} | policy))
    slots = Slots(layout=SlotLayout(job=job, hosts=star(hosts or job.workers)), k=control_loop.k)
    return JobSession(job=job, control_loop=control_loop, journal=journal or Journal(None), slots=slots)


@contextlib.asynccontextmanager
async def serving(
    *sessions: JobSession, switch: str | None = None, credentials: Credentials | None = None
) -> AsyncIterator[Running]:
    """Serve these sessions, with the switch at this address or with none."""
    jobs = Jobs(all=sessions)
    link = SwitchLink(
        address=switch or NO_SWITCH,
        device_id=0,
        plane=KofnPlane(),
        jobs=[session.slots for session in sessions],
    )
    server, (port,) = serve(jobs, [link], ["127.0.0.1:0"], credentials)
    tasks = [asyncio.create_task(work) for work in (jobs.run(), *([link.run()] if switch else []))]
    if switch:
        async with asyncio.timeout(60):
            await link.ready.wait()
    else:
        for session in sessions:
            session.slots.away = str  # the slots behave as if a switch were connected
            session.slots.write = unwritten
    await server.start()
    address = f"127.0.0.1:{port}"
    try:
        async with channel(None, address, CONTROLLER) as line:
            yield Running(jobs=jobs, address=address, channel=line)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.stop(0)


@contextlib.asynccontextmanager
async def controller(
    workers: int = 4, *, journal: Path | None = None, start_workers: int | None = None, **policy: Any
) -> AsyncIterator[Running]:
    """Serve one job without a switch."""
    with Journal(journal) as lines:
        session = setup(JobSection(workers=workers, start_workers=start_workers), journal=lines, **policy)
        async with serving(session) as running:
            yield running


async def agreed(kind: str, workers: Iterable[Worker]) -> int:
    """Return the generation in all workers' Welcomes."""
    (generation,) = {(await worker.expect(kind)).generation for worker in workers}
    return generation


async def until(condition: Any) -> None:
    """Wait until another task fulfils the condition: polls, for at most a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)
