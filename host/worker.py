"""A whole worker: attach to the controller, train, serve peers until everybody is done, write the books.

The training runs in the calling thread; sockets and gRPC live on an event loop in a thread of their own.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from host.agent import Agent
from host.coordinator import Coordinator
from host.faults import Faults
from host.metrics import Metrics
from host.peer import Peers, PeerService
from host.record import Recorder
from host.train import Training
from host.transport import Transport
from rpc import kofn_pb2, kofn_pb2_grpc
from run.config import Config

T = TypeVar("T")

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this worker is: its rank, its management address, the controller's and the switch's."""

    rank: int
    address: str
    controller: str
    service: str


class EventLoop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the loop and wait."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run on the loop and go on."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)


@contextlib.contextmanager
def attached(loop: EventLoop, config: Config, place: Place, agent: Agent) -> Iterator[tuple[Coordinator, int]]:
    """The worker as a member of its job: peer service up, Welcome received, protocol begun; all undone at the end."""
    coordinator, server, first_iteration = loop.run(_attach(config, place, agent))
    try:
        yield coordinator, first_iteration
    finally:
        loop.run(_detach(coordinator, server, agent))


async def _attach(config: Config, place: Place, agent: Agent) -> tuple[Coordinator, grpc.aio.Server, int]:
    """Serve peers, then join."""
    server = grpc.aio.server()
    kofn_pb2_grpc.add_PeerServicer_to_server(PeerService(config.job.id, agent.protocol.results), server)
    port = server.add_insecure_port(f"{place.address}:0")
    await server.start()
    coordinator = Coordinator(place.controller)
    hello = kofn_pb2.Hello(job=config.job.id, rank=place.rank, peer_address=f"{place.address}:{port}")
    welcome = await coordinator.attach(hello)
    others = {peer.rank: peer.address for peer in welcome.peers if peer.rank != place.rank}
    await agent.start(welcome.first_iteration, Peers(config.job.id, others).fetch)
    return coordinator, server, welcome.first_iteration


async def _detach(coordinator: Coordinator, server: grpc.aio.Server, agent: Agent) -> None:
    """Leave without a trace."""
    await agent.close()
    await coordinator.close()
    await server.stop(grace=0)


def work(config: Config, place: Place, metrics_path: Path) -> str:
    """Run one worker to its end; returns why it ended ("target" or "iterations")."""
    training = Training(config, place.rank)
    sending, receiving = (
        Faults(config.fault, rank=place.rank, direction=direction, seed=config.run.seed)
        for direction in ("send", "receive")
    )
    transport = Transport(place.service, sending=sending, receiving=receiving)
    recorder = Recorder() if config.run.record else None
    agent = Agent(config.job, rank=place.rank, elements=training.parameters, transport=transport, recorder=recorder)
    metrics = Metrics(metrics_path)
    loop = EventLoop()
    with attached(loop, config, place, agent) as (coordinator, first_iteration):
        reason = training.run(agent, metrics, first_iteration, lambda report: loop.spawn(coordinator.report(report)))
        loop.run(coordinator.finish(reason, STOP_TIMEOUT_S))
    statistics = asdict(transport.traffic) | asdict(agent.protocol.statistics)
    metrics.write(summary=statistics | {"reason": reason})
    metrics.close(agent.residual.books(), agent.results_total.ravel())
    if recorder is not None:
        recorder.save(metrics_path.with_name(f"{metrics_path.stem}-record.npz"))
    return reason
