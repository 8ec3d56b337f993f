"""A worker's membership in a job while PyTorch trains: the agent that reduces, the controller, the peers."""

import ctypes
import signal
from pathlib import Path
from typing import Protocol

from kofn.config.schema import Config
from kofn.host.agent.agent import Agent
from kofn.host.collectives.job_collective import load_collective
from kofn.host.compression.job_coding import JobCoding
from kofn.host.membership.member import Member
from kofn.host.transport.event_loop import EventLoop
from kofn.host.worker import STOP_TIMEOUT_S, WorkerPlace, agent_of, member_of
from kofn.rpc import kofn_pb2
from kofn.torch.errors import TorchError
from kofn.torch.place import JobPlace
from kofn.torch.replica import ModelReplica

PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""


class TorchJob(Protocol):
    """What a session needs of its job; the training thread calls it."""

    config: Config
    rank: int
    metrics: Path

    def join(self, coding: JobCoding, replica: ModelReplica) -> Agent:
        """Take part from now on: at the job's start, or where a peer's replica is."""

    def report(self, report: kofn_pb2.Report) -> None:
        """Tell the controller of an iteration."""

    def fail(self, error: Exception) -> None:
        """The agent's calls end with this error; from any thread."""

    def leave(self, reason: str) -> None:
        """Give everything back; with a reason ("iterations") once the other workers are done as well."""


class ControlledJob:
    """A TorchJob under a controller; the process ends with the torchrun that has started it."""

    def __init__(self, place: JobPlace) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self.config, self.rank, self.metrics = Config.load(place.config), place.rank, place.metrics
        workers = self.config.job.workers
        if place.rank >= workers:
            raise TorchError(f"this is worker {place.rank}: 0 to {workers - 1} (job.workers - 1) is allowed")
        if not load_collective(self.config.job.collective).ledger:
            raise TorchError(
                f"job.collective is {self.config.job.collective!r}: 'switch' or 'server' is allowed, PyTorch's own"
                " backends sum among workers"
            )
        self._place, self._loop = place, EventLoop()
        self._agent: Agent | None = None
        self._member: Member | None = None

    def join(self, coding: JobCoding, replica: ModelReplica) -> Agent:
        place = WorkerPlace(
            rank=self.rank,
            address=self._place.address,
            controller=self._place.controller,
            service=self._place.service,
        )
        self._agent = agent = agent_of(self.config, place, coding, self._ledger)
        self._member = self._loop.run(member_of(self.config, place, agent, replica, self._place.certs))
        try:
            self._loop.run(self._member.join())
        except BaseException:
            self.leave("")
            raise
        return agent

    def report(self, report: kofn_pb2.Report) -> None:
        assert self._member is not None
        self._loop.spawn(self._member.report(report))

    def fail(self, error: Exception) -> None:
        self._loop.spawn(self._fail(error))

    def leave(self, reason: str) -> None:
        if self._member is not None:
            if reason:
                self._loop.run(self._member.finish(reason, STOP_TIMEOUT_S))
                self._ledger.unlink(missing_ok=True)
            self._loop.run(self._member.leave())
        self._loop.close()

    @property
    def _ledger(self) -> Path:
        return self._place.metrics.with_suffix(".ledger")

    async def _fail(self, error: Exception) -> None:
        if self._agent is not None:
            self._agent.fail(error)
