"""A whole worker: join the job, train, serve peers until everybody is done, write the books.

The training runs in the calling thread; sockets and gRPC live on an event loop in a thread of their own.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from host.agent import Agent
from host.event_loop import EventLoop
from host.faults import Faults
from host.member import Member
from host.metrics import Metrics
from host.pacing import bucket_for
from host.record import Recorder
from host.shape import Shape
from host.train import Training
from host.transport import Transport
from rpc.security import Credentials, worker_name
from run.config import Config

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this worker is: its rank, its management address, the controller's and the switch's."""

    rank: int
    address: str
    controller: str
    service: str


@contextlib.contextmanager
def joined(loop: EventLoop, member: Member) -> Iterator[None]:
    """The worker as a member of its job; all undone at the end."""
    try:
        loop.run(member.join())
        yield
    finally:
        loop.run(member.leave())


def work(config: Config, place: Place, metrics_path: Path, certs: Path | None = None) -> str:
    """Run one worker to its end; returns why it ended ("target" or "iterations").

    Killed and started again with the same arguments it goes on where it was: its books are in metrics_path's .books
    file until it ends well, and lines are added to its metrics.
    """
    training = Training(config, place.rank)
    transport = _transport(config, place, training.coding.shape)
    recorder = Recorder(training.coding) if config.run.record else None
    books = metrics_path.with_suffix(".books")
    agent = Agent(
        config.job,
        rank=place.rank,
        coding=training.coding,
        transport=transport,
        compress=config.compress,
        books=books,
        average=config.model.average,
        drop=config.policy.late == "drop",
        recorder=recorder,
    )
    metrics, loop = Metrics(metrics_path), EventLoop()
    member = loop.run(_member(config, place, agent, training, certs))
    with joined(loop, member):
        reason = training.run(agent, metrics, lambda report: loop.spawn(member.report(report)))
        loop.run(member.finish(reason, STOP_TIMEOUT_S))
    statistics = asdict(transport.traffic) | asdict(agent.protocol.statistics)
    statistics["wire_bytes"] = agent.encoder.sent_bytes
    metrics.write(summary=statistics | {"reason": reason})
    metrics.close(agent.residual.books(), training.replica.results)
    books.unlink()
    if recorder is not None:
        recorder.save(metrics_path.with_name(f"{metrics_path.stem}-record.npz"))
    return reason


def _transport(config: Config, place: Place, shape: Shape) -> Transport:
    """The worker's socket, with the pace and the faults that the run asks for."""
    sending, receiving = (
        Faults(config.fault, rank=place.rank, direction=direction, seed=config.run.seed)
        for direction in ("send", "receive")
    )
    bucket = bucket_for(config.pace_mbps, shape.words_most)
    return Transport(place.service, sending=sending, receiving=receiving, bucket=bucket)


async def _member(config: Config, place: Place, agent: Agent, training: Training, certs: Path | None) -> Member:
    """The member, made where it will live: on the event loop."""
    return Member(
        agent,
        training.replica,
        job=config.job.id,
        rank=place.rank,
        address=place.address,
        controller=place.controller,
        credentials=Credentials.load(certs, worker_name(config.job.id, place.rank), [config.job.id]),
    )
