"""A worker's membership in a job during a training in PyTorch: the agent that reduces, the controller, the peers."""

import ctypes
import signal
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.errors import HostError
from kofn_host.training import Agent, JobCoding
from kofn_host.worker import JobPlace, ThreadMember, agent_of
from kofn_torch.errors import TorchError
from kofn_torch.peers import CommunicatorSum, GroupSum, PeerReducer
from kofn_torch.replica import ModelReplica

PR_SET_PDEATHSIG = 1
"""A constant of linux/prctl.h."""


class TorchJob(Protocol):
    """The methods of a job that a session needs; the training thread calls them."""

    config: Config
    rank: int
    metrics: Path

    def join(self, coding: JobCoding, replica: ModelReplica, group: dist.ProcessGroup) -> Agent | PeerReducer:
        """Join the job, at its start or from a peer's replica; `group` is the model's process group."""

    def report(self, report: kofn_pb2.Report) -> None:
        """Send the controller the report of an iteration."""

    def fail(self, error: HostError) -> None:
        """End the agent's calls with this error. Any thread may call this method."""

    def leave(self, reason: str) -> None:
        """Release all resources. With a reason ("iterations"), first wait until the other workers are done, too."""


class ControlledJob:
    """A TorchJob under a controller; the process ends with the torchrun that started it."""

    def __init__(self, place: JobPlace) -> None:
        settings = {"policy": {"objective": place.objective}} if place.objective else {}
        self.config, self.rank, self.metrics = Config.load(place.config, settings), place.rank, place.metrics
        workers = self.config.job.workers
        if place.rank >= workers:
            raise TorchError(f"the rank must be 0 to {workers - 1} (job.workers - 1), got {place.rank}")
        self._place, self._member = place, ThreadMember()

    def join(self, coding: JobCoding, replica: ModelReplica, group: dist.ProcessGroup) -> Agent | PeerReducer:
        try:
            reducer = self._reduced(coding, group)
        except OSError as error:
            raise TorchError(
                f"worker {self.rank} must train one model in one process, got no connection to {self._place.service}"
                f" ({error}): put several models into one Module and one DistributedDataParallel"
            ) from error
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            self._member.join(self.config, self._place, reducer, replica)
        except BaseException:
            self.leave("")
            raise
        return reducer

    def report(self, report: kofn_pb2.Report) -> None:
        self._member.report(report)

    def fail(self, error: HostError) -> None:
        self._member.fail(error)

    def leave(self, reason: str) -> None:
        if reason:
            self._member.finish(reason)
            self._ledger.unlink(missing_ok=True)
        self._member.close()

    @property
    def _ledger(self) -> Path:
        return self._place.metrics.with_suffix(".ledger")

    def _reduced(self, coding: JobCoding, group: dist.ProcessGroup) -> Agent | PeerReducer:
        """Return the reducer that job.collective names."""
        place, name, plan = self._place.worker, self.config.job.collective, coding.planner.first()
        if name == "gloo":
            return PeerReducer(lambda: GroupSum(group), plan)
        collective = load_collective(name)
        if collective.ledger:
            return agent_of(self.config, place, coding, self._ledger)
        return PeerReducer(lambda: CommunicatorSum(collective.connect(place.rank, place.workers, self.config)), plan)
