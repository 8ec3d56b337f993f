"""A process group "kofn" whose ranks are the workers of the job that the environment says."""

import atexit
import time

import numpy as np

from kofn.config.schema import Config
from kofn.host.arrays import Floats
from kofn.host.collectives.in_network import InNetwork
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.ledger import LedgerTotals
from kofn.host.engine.pacing_rate import pacing_rate
from kofn.host.errors import HostError
from kofn.host.kernels.sample import fingerprint
from kofn.host.training.metrics import Metrics
from kofn.host.training.peer_to_peer import PeerToPeer
from kofn.host.transport.event_loop import EventLoop
from kofn.host.transport.transport import Transport
from kofn.host.worker import STOP_TIMEOUT_S, WorkerPlace, member_of
from kofn.host.workload.replica import ReplicaState
from kofn.torch.errors import TorchError
from kofn.torch.place import JobPlace

ELEMENTS = 1
"""Of an elastic call, of which a process group makes none."""


class GroupReducer(PeerToPeer):
    """Whose communicator is the switch's, of the generation that the controller has admitted."""

    def __init__(self, config: Config, place: JobPlace) -> None:
        coding = JobCoding.of(config.job, config.compress, ELEMENTS)
        self.blocks = coding.layout.blocks
        super().__init__(lambda: self._through_the_switch(coding), coding.planner.first())
        self._config, self._place = config, place

    @property
    def communicator(self) -> InNetwork:
        assert isinstance(self._communicator, InNetwork)
        return self._communicator

    def fail(self, error: HostError) -> None:
        """All calls that are under way end."""
        super().fail(error)
        if self._communicator is not None:
            self._communicator.close()

    def statistics(self) -> dict[str, int]:
        return self.communicator.agent.statistics()

    def totals(self) -> LedgerTotals | None:
        """Of the agent beside which the exact sums are, to which nothing is given."""
        return self.communicator.agent.totals()

    async def close(self) -> None:
        """In this thread: at the process's end there are no others any more."""
        if self._communicator is not None:
            self._communicator.close()

    def _through_the_switch(self, coding: JobCoding) -> InNetwork:
        words = coding.layout.words_most
        return InNetwork(
            self._place.rank,
            ELEMENTS,
            job=self._config.job,
            transport=Transport(self._place.service, pace=pacing_rate(self._config.pace_mbps(1), words)),
            addresses=self._place.workers,
            first_iteration=self.iteration,
            generation=self.generation,
        )


class NoReplica:
    """A process group has no parameters that a worker could go on from."""

    def start(self, iteration: int) -> None:
        """Nothing is to be counted."""

    def state(self) -> ReplicaState | None:
        return None

    def restore(self, state: ReplicaState) -> None:
        raise TorchError("the job runs already: a process group needs every worker from the beginning to the end")


class GroupJob:
    """This worker's place in the job of a process group, until close(); `communicator` goes through the switch."""

    def __init__(self, rank: int, size: int) -> None:
        self.place = place = JobPlace.find((rank, size))
        config, self._loop = Config.load(place.config), EventLoop()
        if (workers := config.job.workers) != size:
            raise TorchError(f"WORLD_SIZE is {size}, job.workers is {workers}: the same is needed")
        self.workers, self.reducer, self.metrics = workers, GroupReducer(config, place), Metrics(place.metrics)
        at = WorkerPlace(rank=rank, address=place.address, controller=place.controller, service=place.service)
        self._member = self._loop.run(member_of(config, at, self.reducer, NoReplica(), place.certs))
        self._loop.run(self._member.join())
        self.communicator = self.reducer.communicator
        self._iteration, self._ended = 0, time.time()
        atexit.register(self.close)

    def stepped(self, parameters: Floats) -> None:
        """An iteration has ended, with these parameters of the whole model."""
        self._iteration, started, self._ended = self._iteration + 1, self._ended, time.time()
        self.metrics.write(
            iteration=self._iteration,
            started=started,
            time=self._ended,
            iteration_s=self._ended - started,
            params=fingerprint(parameters),
            k=self.workers,
            count=self.workers,
            members=list(range(self.workers)),
        )

    def close(self) -> None:
        """Leave the job together with the others."""
        atexit.unregister(self.close)
        try:
            self._loop.run(self._member.finish("iterations", STOP_TIMEOUT_S))
        finally:
            self._loop.run(self._member.leave())
            self._loop.close()
            self.metrics.sum_up(self.reducer, "iterations", np.zeros(self.reducer.blocks, np.int64))
