"""A real controller without a switch, and workers that speak real gRPC to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from controller.decide import Decider
from controller.entries import Layout
from controller.journal import Journal
from controller.push import Program, SwitchLink
from controller.service import serve
from controller.session import Session
from controller.topology import Host
from rpc import kofn_pb2 as pb
from rpc import kofn_pb2_grpc
from run.config import Job, Policy

NO_SWITCH = "127.0.0.1:1"


def star(hosts: int) -> tuple[Host, ...]:
    return tuple(
        Host(name=f"h{rank + 1}", rank=rank, mac=0x080000000001 + rank, ip=0x0A000001 + rank, port=rank + 1)
        for rank in range(hosts)
    )


@dataclass(kw_only=True)
class Running:
    session: Session
    address: str
    channel: grpc.aio.Channel

    @property
    def inspector(self) -> Any:
        return kofn_pb2_grpc.InspectorStub(self.channel)

    def worker(self, rank: int, *, job: int = 1) -> "Worker":
        call = kofn_pb2_grpc.CoordinatorStub(self.channel).Attach()
        return Worker(rank=rank, job=job, call=call)

    async def start_all(self) -> list["Worker"]:
        workers = [self.worker(rank) for rank in range(self.session.workers)]
        for worker in workers:
            await worker.hello()
        for worker in workers:
            assert (await worker.next()).HasField("welcome")
        return workers


@dataclass(kw_only=True)
class Worker:
    rank: int
    job: int
    call: Any

    async def hello(self) -> None:
        hello = pb.Hello(job=self.job, rank=self.rank, peer_address=f"10.9.9.{self.rank}:50053")
        await self.call.write(pb.WorkerMessage(hello=hello))

    async def report(self, iteration: int, first_block_s: float, **fields: Any) -> None:
        report = pb.Report(iteration=iteration, first_block_s=first_block_s, **fields)
        await self.call.write(pb.WorkerMessage(report=report))

    async def finish(self, reason: str) -> None:
        await self.call.write(pb.WorkerMessage(finished=pb.Finished(reason=reason)))

    async def next(self) -> pb.ControllerMessage:
        async with asyncio.timeout(10):
            message = await self.call.read()
        assert message is not grpc.aio.EOF, f"stream of worker {self.rank} ended"
        return message


@contextlib.asynccontextmanager
async def controller(
    workers: int = 4, *, objective: str = "round", journal: Path | None = None, **policy: Any
) -> AsyncIterator[Running]:
    decider = Decider(workers=workers, policy=Policy(objective=objective, **policy))
    layout = Layout(job=Job(workers=workers), hosts=star(workers))
    link = SwitchLink(address=NO_SWITCH, device_id=0, program=Program(), layout=layout, k=decider.k)
    with Journal(journal) as lines:
        session = Session(job=1, decider=decider, journal=lines, put=link.set_k)
        server, (port,) = serve(session, link, ["127.0.0.1:0"])
        await server.start()
        tasks = [asyncio.create_task(work) for work in (session.watch(), session.carry())]
        address = f"127.0.0.1:{port}"
        try:
            async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
                yield Running(session=session, address=address, channel=channel)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0)


async def until(condition: Any) -> None:
    """Wait for what another task brings about: polls, at most 10 s."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)
