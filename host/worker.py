"""A whole worker: join the job, train, serve peers until everybody is done, write the books.

The training runs in the calling thread; sockets and gRPC live on an event loop in a thread of their own.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from host.agent import Agent
from host.collective import Collective
from host.direct import Direct
from host.event_loop import EventLoop
from host.faults import Faults
from host.gloo import Gloo
from host.member import Member
from host.metrics import Metrics
from host.pacing import bucket_for
from host.record import Recorder
from host.reducer import Reducer
from host.ring import Ring
from host.shape import Shape
from host.train import Training
from host.transport import Transport
from host.wire import FORWARDED_PORT, PORT
from rpc.security import Credentials, worker_name
from run.config import PEER_TO_PEER, Config

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this worker is: its rank, its management address, the controller's and who sums its gradients.

    `service`: the switch's address, or the parameter server's; `workers`: everyone's on the data network, by rank,
    where they sum themselves.
    """

    rank: int
    address: str
    controller: str
    service: str
    workers: tuple[str, ...] = ()


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
    books = metrics_path.with_suffix(".books")
    recorder = Recorder(training.coding) if config.run.record else None
    reducer = _reducer(config, place, training, books, recorder)
    metrics, loop = Metrics(metrics_path), EventLoop()
    member = loop.run(_member(config, place, reducer, training, certs))
    with joined(loop, member):
        reason = training.run(reducer, metrics, lambda report: loop.spawn(member.report(report)))
        loop.run(member.finish(reason, STOP_TIMEOUT_S))
    account = reducer.account()
    metrics.write(summary=reducer.statistics() | {"reason": reason, "account": account and asdict(account)})
    metrics.close(reducer.books(), training.replica.results)
    books.unlink(missing_ok=True)
    if recorder is not None:
        recorder.save(metrics_path.with_name(f"{metrics_path.stem}-record.npz"))
    return reason


def _reducer(config: Config, place: Place, training: Training, books: Path, recorder: Recorder | None) -> Reducer:
    """Who sums the gradients, as the configuration says."""
    if config.job.collective in PEER_TO_PEER:
        return Direct(lambda: _among_workers(config, place), training.coding.planner.first())
    return Agent(
        config.job,
        rank=place.rank,
        coding=training.coding,
        transport=_transport(config, place, training.coding.shape),
        compress=config.compress,
        books=books,
        average=config.model.average,
        treatment=config.policy.treatment,
        age_limit=config.policy.age_limit,
        recorder=recorder,
    )


def _among_workers(config: Config, place: Place) -> Collective:
    """The workers' own collective, once all are there."""
    make = Ring if config.job.collective == "ring" else Gloo
    return make(place.rank, place.workers, job=config.job.id)


def _transport(config: Config, place: Place, shape: Shape) -> Transport:
    """The worker's socket, to the switch or a server, with the pace and the faults that the run asks for."""
    sending, receiving = (
        Faults(config.fault, rank=place.rank, direction=direction, seed=config.run.seed)
        for direction in ("send", "receive")
    )
    bucket = bucket_for(config.pace_mbps, shape.words_most)
    port = FORWARDED_PORT if config.job.collective == "server" else PORT
    return Transport(place.service, sending=sending, receiving=receiving, bucket=bucket, port=port)


async def _member(config: Config, place: Place, reducer: Reducer, training: Training, certs: Path | None) -> Member:
    """The member, made where it will live: on the event loop."""
    return Member(
        reducer,
        training.replica,
        job=config.job.id,
        rank=place.rank,
        address=place.address,
        controller=place.controller,
        credentials=Credentials.load(certs, worker_name(config.job.id, place.rank), [config.job.id]),
    )
