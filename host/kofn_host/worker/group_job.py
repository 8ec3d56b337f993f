"""A worker's place in the job that its environment names, for calls through the switch.

A process group "kofn" of PyTorch makes exact calls only; a sharded optimizer makes elastic calls as well.
"""

import asyncio
import atexit
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass

from msgspec.structs import replace

from kofn_common import wall_clock
from kofn_common.config.compress import CompressSection, Residual
from kofn_common.config.job import JobSection
from kofn_common.config.model import Average
from kofn_common.config.schema import Config
from kofn_common.results.memory import Memory
from kofn_common.results.worker_metrics import bitmap_of
from kofn_host.agent.peer_source import PeerSource
from kofn_host.arrays import fingerprint
from kofn_host.collectives.block_rows import BlockRows, may_be_apart
from kofn_host.collectives.call import Array
from kofn_host.collectives.in_network import InNetwork, MeanMembers
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.errors import HostError, PlaceError
from kofn_host.protocol.results import BlockId, Result
from kofn_host.training.metrics import Metrics
from kofn_host.training.peer_to_peer import PeerToPeer
from kofn_host.transport.transport import Transport
from kofn_host.worker.job_place import JobPlace
from kofn_host.worker.thread_member import ThreadMember
from kofn_host.workload.replica import ReplicaState
from kofn_host.zero.shards import Shards

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticCalls:
    """Settings of the elastic means.  `codec`: their compress.codec; None: there are no elastic calls.

    `units`: the number of elements of each unit.  With `scattered` the means are reduce-scatters of the units' shards
    if the job's blocks and slots allow it; otherwise they are all-reduces.
    """

    units: tuple[int, ...] = (1,)
    scattered: bool = False
    codec: str | None = None
    average: Average = "gradients"
    residual: Residual = "exact"

    def compress(self, config: Config) -> CompressSection:
        """Return the job's [compress] with this codec; PlaceError if a setting contradicts the codec."""
        if self.codec is None:
            return CompressSection()
        given, default = config.compress, CompressSection()
        if given.codec not in (default.codec, self.codec):
            raise PlaceError(f"compress.codec must be {self.codec!r} here, or none, got {given.codec!r}")
        if (given.ratio, given.ratio_control) != (default.ratio, default.ratio_control):
            raise PlaceError("compress.ratio and ratio_control must not be given: all is sent in every step")
        compress = replace(given, codec=self.codec, residual=self._residual(given.residual))
        compress.check(workers=config.job.workers, words=config.job.words)
        return compress

    @property
    def elements(self) -> int:
        return sum(self.units)

    def rows(self, job: JobSection, compress: CompressSection) -> BlockRows | None:
        """Return the rows of a reduce-scatter; None for all-reduces.

        Also return None if rows would need more than an eighth more blocks than all-reduces.
        """
        if not self.scattered:
            return None
        columns = Shards(self.units, job.workers).shard_elements
        rows, together = BlockRows.of(job, compress, columns), JobCoding.of(job, compress, self.elements)
        if not may_be_apart(rows.blocks, together.layout.blocks):
            return None
        if rows.blocks >= job.slots:  # one more block carries the workers' magnitudes
            log.warning(
                "all means come down to all workers: job.slots is %d, more than %d are needed for a reduce-scatter",
                job.slots,
                rows.blocks,
            )
            return None
        return rows

    def _residual(self, given: Residual) -> Residual:
        """Return the script's setting, or else the configuration's; PlaceError if they differ."""
        if "exact" not in (given, self.residual) and given != self.residual:
            raise PlaceError(f"compress.residual must be {self.residual!r} here, or none, got {given!r}")
        return self.residual if given == "exact" else given


class PeersOfLoop:
    """A PeerSource that lives on another event loop."""

    def __init__(self, source: PeerSource, loop: asyncio.AbstractEventLoop) -> None:
        self._source, self._loop = source, loop

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        async def fetch() -> list[list[Result]]:
            return [results async for results in self._source.fetch(first, last, everyone=everyone)]

        for results in await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(fetch(), self._loop)):
            yield results

    async def state(self) -> ReplicaState | None:
        """Return None: there is no replica to give."""
        return None

    async def report_ahead(self, block: BlockId, generation: int) -> None:
        asyncio.run_coroutine_threadsafe(self._source.report_ahead(block, generation), self._loop)


class GroupReducer(PeerToPeer):
    """A reducer whose communicator goes through the switch, in slots of the generation that the controller has set."""

    def __init__(self, config: Config, place: JobPlace, calls: ElasticCalls) -> None:
        self._compress = compress = calls.compress(config)
        rows = calls.rows(config.job, compress)
        coding = JobCoding.of(config.job, compress, calls.elements if rows is None else rows.elements)
        super().__init__(lambda: self._through_the_switch(coding, rows), coding.planner.first())
        self._config, self._place, self._calls = config, place, calls
        self._peers: PeerSource | None = None

    async def join_first(
        self, iteration: int, generation: int, peer_source: PeerSource, state: ReplicaState | None = None
    ) -> None:
        self._peers = PeersOfLoop(peer_source, asyncio.get_running_loop())
        await super().join_first(iteration, generation, peer_source)

    def held(self, first: int, last: int) -> Iterable[Result]:
        """Return results of elastic calls."""
        return () if self._communicator is None else self.communicator.agent.held(first, last)

    @property
    def communicator(self) -> InNetwork:
        assert isinstance(self._communicator, InNetwork)
        return self._communicator

    def regroup(self, generation: int) -> None:
        """End all calls: the slots are lost."""
        super().regroup(generation)
        if self._communicator is not None:
            self.communicator.lose_slots(generation)

    def fail(self, error: HostError) -> None:
        """End all running calls."""
        super().fail(error)
        if self._communicator is not None:
            self._communicator.close()

    def statistics(self) -> dict[str, int]:
        return self.communicator.agent.statistics()

    def totals(self) -> LedgerTotals | None:
        """Return the totals of the elastic calls."""
        return self.communicator.agent.totals()

    async def close(self) -> None:
        """Close the communicator in this thread: at the process's end all other threads have ended."""
        if self._communicator is not None:
            self._communicator.close()

    def _through_the_switch(self, coding: JobCoding, rows: BlockRows | None) -> InNetwork:
        words = coding.layout.words_most
        return InNetwork(
            self._place.rank,
            self._calls.elements,
            job=self._config.job,
            transport=Transport(
                self._place.service,
                pace=pacing_rate(self._config.pace_mbps(1), words),
                interface=self._place.interface,
                switch_segments=self._config.network.coalesced,
            ),
            addresses=self._place.workers,
            compress=self._compress,
            average=self._calls.average,
            rows=rows,
            peer_source=self._peers,
            first_iteration=self.iteration,
            generation=self.generation,
        )


class NoReplica:
    """The replica of a process group, which has no parameters that a worker could start from."""

    def start(self, iteration: int) -> None:
        """Do nothing: there are no iterations to count."""

    def state(self) -> ReplicaState | None:
        return None

    def restore(self, state: ReplicaState) -> None:
        raise PlaceError("the job runs already: a process group needs every worker from the beginning to the end")


class GroupJob:
    """This worker's place in the job, until close(); `communicator` goes through the switch.

    `rank`, `size`: this process's rank in the training's process group, and the group's size; 0 and 1 if every worker
    has a separate group.
    """

    def __init__(self, rank: int, size: int, calls: ElasticCalls = ElasticCalls()) -> None:  # frozen
        self.place = place = JobPlace.find((rank, size))
        config, self._member = Config.load(place.config), ThreadMember()
        if (workers := config.job.workers) != size and (calls.codec is None or size > 1):
            raise PlaceError(f"WORLD_SIZE must be job.workers, {workers}, got {size}")
        self.workers, self.reducer, self.metrics = workers, GroupReducer(config, place, calls), Metrics(place.metrics)
        self._member.join(config, place, self.reducer, NoReplica())
        self.communicator = self.reducer.communicator
        self._iteration, self._ended = 0, wall_clock.now()
        self._memory: Memory | None = None
        atexit.register(self.close)

    def stepped(self, *shared: Array, memory: Memory | None = None) -> None:
        """Write the metrics of an iteration that has ended.

        `shared`: values that are equal at all workers; `memory`: this worker's memory, if known.
        """
        self._memory = memory
        self._iteration, started, self._ended = self._iteration + 1, self._ended, wall_clock.now()
        everyone = MeanMembers(self.workers, self.workers, list(range(self.workers)), late=False)
        made = self.communicator.latest or everyone  # exact calls include all workers
        self.communicator.latest = None
        self.metrics.write(
            iteration=self._iteration,
            started=started,
            time=self._ended,
            iteration_s=self._ended - started,
            params=fingerprint(*shared),
            k=made.k,
            count=made.count,
            members=bitmap_of(made.ranks),
            late=made.late,
            **(asdict(made.encoding) if made.encoding else {}),
        )

    def close(self) -> None:
        """Leave the job together with the others."""
        atexit.unregister(self.close)
        try:
            self._member.finish("iterations")
        finally:
            self._member.close()
            communicator = self.communicator
            self.metrics.sum_up(
                self.reducer, "iterations", communicator.results, self._memory, received=communicator.receives
            )
