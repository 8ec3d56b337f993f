"""A whole worker: join the job, train, serve peers until all workers are done, write the ledger.

The training runs in the calling thread; sockets and gRPC live on an event loop in another thread.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_common.rpc.security import Credentials, worker_name
from kofn_host.agent.agent import Agent
from kofn_host.agent.recorder import Recorder
from kofn_host.checkpoint.folder import CheckpointFolder
from kofn_host.checkpoint.saver import Saver
from kofn_host.compression.age_weight import AgeWeight
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.job_coding import JobCoding
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.membership.member import HeldReplica, Member
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.training.loop import Training
from kofn_host.training.metrics import Metrics
from kofn_host.training.overlapped import OverlappedTraining
from kofn_host.training.peer_to_peer import PeerToPeer
from kofn_host.training.reducer import Reducer
from kofn_host.transport.event_loop import EventLoop
from kofn_host.transport.fault_injection import faults_of
from kofn_host.transport.transport import Transport
from kofn_host.worker.worker_place import WorkerPlace

STOP_TIMEOUT_S = 30.0


@contextlib.contextmanager
def joined(loop: EventLoop, member: Member) -> Iterator[None]:
    """Join the job; leave it at the end of the `with` block."""
    try:
        loop.run(member.join())
        yield
    finally:
        loop.run(member.leave())


def work(
    config: Config, place: WorkerPlace, metrics_path: Path, certs: Path | None = None, checkpoints: Path | None = None
) -> str:
    """Run one worker to its end; return the reason of the end ("target", "iterations" or "diverged").

    A killed worker that is restarted with the same arguments continues: the ledger is in a .ledger file beside
    `metrics_path` until a regular end, and the metrics are appended.  `checkpoints`: the folder of the job's
    checkpoints, which all workers share.  A job whose workers are all new resumes at the newest checkpoint.
    """
    training = training_of(config, place.rank)
    ledger_file = metrics_path.with_suffix(".ledger")
    recorder = Recorder(training.coding) if config.run.record else None
    reducer = _reducer(config, place, training, ledger_file, recorder)
    metrics, loop = Metrics(metrics_path), EventLoop()
    if checkpoints is not None:
        folder = CheckpointFolder(checkpoints, config.run.checkpoint_keep)
        training.saver = Saver(folder, config, place.rank, reducer.ledger)
        training.saver.sync = metrics.sync
    member = loop.run(member_of(config, place, reducer, training.replica, certs, training.saver))
    with joined(loop, member):
        reason = training.run(reducer, metrics, lambda report: loop.spawn(member.report(report)))
        if training.saver is not None:
            training.saver.close()
        loop.run(member.finish(reason, STOP_TIMEOUT_S))
    metrics.sum_up(reducer, reason, training.replica.results, training.replica.memory + reducer.memory)
    ledger_file.unlink(missing_ok=True)
    if recorder is not None:
        recorder.save(metrics_path.with_name(f"{metrics_path.stem}-record.npz"))
    return reason


def training_of(config: Config, rank: int) -> Training:
    """Return the training that the configuration's schedule asks for."""
    return Training(config, rank) if config.schedule.family is None else OverlappedTraining(config, rank)


def _reducer(
    config: Config, place: WorkerPlace, training: Training, ledger_file: Path, recorder: Recorder | None
) -> Reducer:
    """Return the reducer of the configured collective."""
    collective = load_collective(config.job.collective)
    if not collective.ledger:
        connect = partial(collective.connect, place.rank, place.workers, config)
        return PeerToPeer(connect, training.coding.planner.first())
    return agent_of(config, place, training.coding, ledger_file, recorder)


def agent_of(
    config: Config, place: WorkerPlace, coding: JobCoding, ledger_file: Path, recorder: Recorder | None = None
) -> Agent:
    """Return an agent whose packets a switch or a server sums; `ledger_file`: the file of its ledger."""
    transport = _transport(config, place, coding.layout)  # first: if it fails, there is no ledger file yet
    encoder = Encoder.of(coding, config.compress, place.rank, job=config.job.id, file=ledger_file)
    encoder.ledger.age = AgeWeight(limit=config.policy.age_limit)
    return Agent(
        config.job,
        encoder,
        transport,
        average=config.model.average,
        late_policy=config.policy.late_policy,
        recorder=recorder,
    )


def _transport(config: Config, place: WorkerPlace, shape: BlockLayout) -> Transport:
    """Return the worker's socket to the switch or server, with the configured pace and faults."""
    sending, receiving = faults_of(config, place.rank)
    collective = load_collective(config.job.collective)
    pace = pacing_rate(config.pace_mbps(collective.sharing(config.job.workers)), shape.words_most)
    return Transport(
        place.service,
        sending=sending,
        receiving=receiving,
        pace=pace,
        port=collective.port,
        interface=place.interface,
        switch_segments=config.network.coalesced,
    )


async def member_of(
    config: Config,
    place: WorkerPlace,
    reducer: Reducer,
    replica: HeldReplica,
    certs: Path | None,
    saver: Saver | None = None,
) -> Member:
    """Return the member; async because it must be constructed on its event loop."""
    return Member(
        reducer,
        replica,
        job=config.job.id,
        rank=place.rank,
        address=place.address,
        controller=place.controller,
        credentials=Credentials.load(certs, worker_name(config.job.id, place.rank), [config.job.id]),
        saver=saver,
    )
