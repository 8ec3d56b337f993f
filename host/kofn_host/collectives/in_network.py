"""Collectives through the switch; elastic means also through a parameter server, which answers by the same rules.

An elastic call is one iteration of an Agent; its array is padded with zeros to a gradient of the job's size.  Encoding
errors and late arrays stay in the ledger for the next call.  In an elastic reduce-scatter each block's sum goes to one
worker only (block_rows.py); the slots keep the sums until all workers have their rows, so a lost sum can be pulled
again.  exact_sums.py carries out all other calls.
"""

import math
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.config.model import Average
from kofn_common.wire.packet import PORT
from kofn_host.agent.agent import Agent
from kofn_host.agent.exchange import Contribution, Update
from kofn_host.agent.gradient_stream import GradientStream
from kofn_host.agent.iteration_wait import GIVE_UP_AFTER_S
from kofn_host.agent.peer_source import PeerSource
from kofn_host.arrays import Floats, Integers
from kofn_host.collectives.block_rows import BlockRows
from kofn_host.collectives.call import Array, CollectiveCall, check_elements
from kofn_host.collectives.communicator import Communicator, Task
from kofn_host.collectives.exact_sums import ExactSums, exact_protocol
from kofn_host.collectives.peers import MEET_S
from kofn_host.collectives.streamed_gradient import StreamedGradient, collective
from kofn_host.collectives.work import Work, WorkOutcome
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.codec import check
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.encoding import Encoding
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.side_values import SideValues
from kofn_host.errors import AgentError, CollectiveError, GradientError
from kofn_host.protocol.results import BlockId, Result
from kofn_host.stopwatch import Times, within_wait
from kofn_host.transport.event_loop import EventLoop
from kofn_host.transport.transport import Transport
from kofn_host.workload.replica import ReplicaState


class Nobody:
    """A PeerSource without peers, for sums of all workers: such a sum stays in the switch until all workers have it."""

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        nothing: list[list[Result]] = []
        for results in nothing:
            yield results

    async def state(self) -> ReplicaState | None:
        return None

    async def report_ahead(self, block: BlockId, generation: int) -> None:
        """Do nothing: without a controller the call waits for the sum until the call gives up."""


class MeanMembers(NamedTuple):
    """The members of an elastic mean.

    `late`: whether this worker is missing in a block.  `encoding`: measurements of this worker's values, None if the
    worker contributed no values.
    """

    k: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed
    ranks: list[int]
    late: bool
    encoding: Encoding | None = None


class InNetwork(Communicator):
    """A Communicator of a job's workers; `transport` leads to the job's switch or server.

    Through a switch, all calls are possible if job.exact_slots and the workers' `addresses` are given.  Worker 0 then
    listens for TCP at its address, as in a PeerCommunicator, and the constructor returns when all workers have joined.
    Arrays of floats must be finite; exact_lanes.FixedPoint states the error of their sums.  Without addresses there are
    only elastic means.

    Elastic calls are means of float32.  All workers must make them in the same order, with the same names.  Elastic and
    exact calls do not wait for each other, and are numbered separately.

    `elements`: the number of elements of the largest elastic call; every elastic call sends this number.  `rows`:
    elastic calls are reduce-scatters of such rows, done when all workers have their rows; this needs addresses.

    `generation`: the generation of the slots.  `first_iteration`: the first iteration of the job.  If the job's slots
    have already summed iterations of this generation, `first_iteration` must be later than these iterations, by at most
    the job's number of slots.

    `peer_source`: the other workers, needed if k < n and all workers receive the sums.  `timeout_s`: the longest time
    without a closed block; `meet_s`: the longest wait for all workers.  CollectiveError if an address is unavailable,
    or a worker does not join.

    The workers compare elastic calls by side values (compression.side_values).  With k < n a worker whose call differs
    learns this at once; the other workers learn it once that worker's call is in a sum.
    """

    def __init__(
        self,
        rank: int,
        elements: int,
        *,
        job: JobSection,
        transport: Transport,
        addresses: Sequence[str] = (),
        compress: CompressSection = CompressSection(),  # noqa: B008  # frozen
        average: Average = "gradients",
        rows: BlockRows | None = None,
        peer_source: PeerSource | None = None,
        first_iteration: int = 1,
        generation: int = 0,
        timeout_s: float = GIVE_UP_AFTER_S,
        meet_s: float = MEET_S,
    ) -> None:
        _check_addresses(addresses, job, transport, rows)
        super().__init__(rank, job.workers)
        self._exact: ExactSums | None = None
        self._coding = JobCoding.of(job, compress, elements if rows is None else rows.elements, notes=True)
        self.rows = rows
        """The rows of elastic calls; None: elastic calls are all-reduces."""
        self.generation = generation
        """The generation of the slots."""
        exact = exact_protocol(job, rank, self._coding.layout.words_most) if addresses else None
        self.agent = Agent(
            job,
            Encoder.of(self._coding, compress, rank),
            transport,
            average=average,
            give_up_s=timeout_s,
            recipients=None if rows is None else rows.recipients(self._coding.layout.total),
        )
        """The agent of elastic calls, for serving its results to other workers, and for its statistics."""
        self.results: Integers = np.zeros(self._coding.layout.blocks, np.int64)
        """The sum of all elastic means' checksums, as in Replica; with `rows`, the checksums of the received blocks."""
        self.latest: MeanMembers | None = None
        """The members of the latest elastic mean."""
        self.reduced = Times()
        """The part of the latest elastic call's time that the engine thread spent."""
        self._loop = EventLoop()
        self._loop.run(self.agent.start(first_iteration, generation, peer_source or Nobody(), exact_port=exact))
        if exact is None:
            return
        exact.enter(generation)
        try:
            self._exact = ExactSums(
                rank,
                addresses,
                exact,
                job=job.id,
                iteration=first_iteration - 1,
                timeout_s=timeout_s,
                meet_s=meet_s,
                failing=self._exact_failing,
            )
        except BaseException:
            self.close()
            raise

    @property
    def receives(self) -> npt.NDArray[np.bool_]:
        """Whether this worker receives each block's mean, (blocks,)."""
        blocks = self._coding.layout.blocks
        return np.full(blocks, True) if self.rows is None else self.rows.recipients(blocks) == self.rank

    @property
    def block_elements(self) -> int:
        """Elements of a block of an elastic call."""
        return self._coding.layout.elements

    def _begin(
        self, call: CollectiveCall, given: Array, out: Array, name: str, stream: GradientStream | None = None
    ) -> Work[Any]:
        if call.elastic or self._exact is None:
            return super()._begin(call, given, out, name, stream)
        return self._exact._begin(call, given, out, name)

    def begin(self, elements: int, *, name: str = "", elastic: bool = False) -> StreamedGradient:
        """Begin a mean as Communicator.begin() does.

        An elastic mean is a single all-reduce: workers may put different pieces, or call all_reduce() with the whole
        gradient.  The pieces that are put first should be the first elements, because a block may wait until the block
        one window before it has closed (docs/explanation/protocol.md).  An iteration that omits blocks waits for all
        pieces.
        """
        if not elastic:
            return super().begin(elements, name=name)
        if self.rows is not None:
            raise CollectiveError("elastic must be False here, got True: elastic calls are reduce-scatters")
        check_elements(elements)
        self._check_size(elements)
        call = CollectiveCall(kind="all_reduce", dtype="float32", shape=(elements,), op="mean", elastic=True)
        stream = GradientStream(np.zeros(self._coding.elements, np.float32), self._coding.layout.elements)
        if rest := self._coding.elements - elements:
            stream.pieces.put(elements, np.zeros(rest, np.float32))
        out = np.empty(elements, np.float32)
        return ElasticGradient(stream, self._begin(call, stream.pieces.values[:elements], out, name, stream))

    def lose_slots(self, generation: int) -> None:
        """End all calls at all workers at once: the switch was restarted, with slots of this generation.

        Exact sums, and sums for one worker, are lost with the slots.  Any thread may call this method; a call with the
        current generation or an earlier one has no effect.
        """
        if generation <= self.generation or self._closed:
            return
        reason = (
            f"the switch has restarted: its slots are of generation {generation}; the slots of this communicator, of"
            f" generation {self.generation}, are lost with the sums in them; make a new communicator with generation"
            f" {generation} and start the training again"
        )
        self.fail(reason)

    def fail(self, reason: str, *, late: Work[Any] | None = None) -> None:
        self._fail(reason)
        if self._exact is not None:
            self._exact.fail(reason, late=late)
        self._fail_elastic(reason)

    def _check(self, call: CollectiveCall, given: Array) -> None:
        if not call.elastic:
            raise CollectiveError(
                f"{call} needs the workers' addresses, got none: without them the only call is an elastic"
                " all_reduce(mean)"
            )
        allowed = "all_reduce" if self.rows is None else "reduce_scatter"
        if (call.op, call.kind) != ("mean", allowed):
            raise CollectiveError(f"the call must be an elastic {allowed}(mean), got {call}")
        if call.dtype != "float32":
            raise CollectiveError(f"array must be float32 in an elastic mean, got {call.dtype}")
        if self.rows is None:
            self._check_size(given.size)
        elif (columns := given.size // self.workers) > self.rows.columns:
            raise CollectiveError(f"rows must have at most {self.rows.columns:,} elements in this job, got {columns:,}")
        try:
            check(np.ascontiguousarray(given).reshape(-1))
        except GradientError as error:
            raise CollectiveError(f"worker {self.rank}: {error}") from error

    def _check_size(self, elements: int) -> None:
        if elements > self._coding.elements:
            raise CollectiveError(
                f"array must have at most {self._coding.elements:,} elements in this job, got {elements:,}"
            )

    def _submit(self, task: Task) -> None:
        self._agreed(task.key)

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        """Run one iteration, and take the means of the iterations that the other workers have finished meanwhile."""
        watch = task.watch
        watch.turn("encode")
        gradient = None if task.stream is not None else self._padded(task.given)
        note, out, before = _side_values(task), self._target(task), self.agent.traffic
        watch.turn("wait")
        exchange = self.agent.all_reduce(Contribution(gradient, stream=task.stream, good=True, out=out, note=note))
        self.reduced = exchange.reduced
        watch.turn("decode")
        first, *later = [self._checked(update, note, task) for update in exchange.updates]
        if first.mean is not out:
            task.out[...] = self._part(first, task.call)
        if self.rows is not None:
            watch.turn("wait")
            self._await_rows()
        return WorkOutcome(
            value=task.out,
            count=first.least,
            times=within_wait(watch.times(), exchange.times),
            sent_bytes=self.agent.traffic.bytes_sent - before.bytes_sent,
            received_bytes=self.agent.traffic.bytes_received - before.bytes_received,
            skipped=[self._part(update, task.call) for update in later],
        )

    def _await_rows(self) -> None:
        """Wait until all workers have their rows: until then only the switch's slots hold them."""
        assert self._exact is not None
        self._exact.barrier(name="rows of an elastic reduce-scatter").result()

    def _exact_failing(self, reason: str) -> None:
        """Fail elastic reduce-scatters, whose barrier needs exact calls; called by any thread."""
        if self.rows is not None:
            self._fail_elastic(reason)

    def _fail_elastic(self, reason: str) -> None:
        """Fail the elastic call that is under way; any thread may call it."""

        async def fail() -> None:
            self.agent.fail(CollectiveError(reason))

        if not self._closed:
            self._loop.spawn(fail())

    def _target(self, task: Task) -> Floats | None:
        """Return the call's `out` as the mean's memory, if `out` has all elements and does not overlap the gradient."""
        apart = self.rows is None and not np.may_share_memory(task.out, task.given)
        return task.out.reshape(-1) if apart and task.out.size == self._coding.elements else None

    def _padded(self, given: Array) -> Floats:
        """Return a gradient of the job's size, which may be the given array itself."""
        if self.rows is not None:
            return self.rows.laid(given.reshape(self.workers, -1))
        if given.size == self._coding.elements:
            return np.ascontiguousarray(given).reshape(-1)
        gradient = np.zeros(self._coding.elements, np.float32)
        gradient[: given.size] = given.reshape(-1)
        return gradient

    def _checked(self, update: Update, note: SideValues, task: Task) -> Aggregate:
        """Return the aggregate of an iteration; CollectiveError unless all its workers have made the same call."""
        if isinstance(update, ReplicaState):
            raise CollectiveError(f"worker {self.rank} was away too long: no worker holds the missed sums any more")
        for rank, theirs in update.notes.items():
            if theirs != note:
                _, dimensions, elements = theirs
                raise CollectiveError(
                    f"the workers' calls differ: worker {rank} calls {self._kind} of {elements} elements in"
                    f" {dimensions} dimensions, worker {self.rank} calls {task}"
                )
        self.results += update.checksums
        self.latest = MeanMembers(update.k, update.count, update.members, update.late, update.encoding)
        return update

    @property
    def _kind(self) -> str:
        return "an all_reduce" if self.rows is None else "a reduce_scatter"

    def _part(self, update: Aggregate, call: CollectiveCall) -> Floats:
        """Return the mean of a call's array, or this worker's row of that mean."""
        size = math.prod(call.shape)
        if self.rows is None:
            return update.mean[:size].reshape(call.shape)
        return self.rows.row(update.mean, self.rank)[: size // self.workers].reshape(call.shape[1:])

    def _leave(self, trouble: str) -> None:
        """Leave the exact calls, and fail the elastic call that is under way."""
        if self._exact is not None:
            self._exact.close()
        self.agent.fail(AgentError("it is closed"))

    def _release(self) -> None:
        self._loop.run(self.agent.close())
        self._loop.close()


class ElasticGradient(StreamedGradient):
    """An elastic all-reduce whose array comes in pieces; it fails if `work` fails."""

    def __init__(self, stream: GradientStream, work: Work[Floats]) -> None:
        super().__init__(stream.pieces)
        self._stream, self._work = stream, work
        work.add_done_callback(lambda done: stream.fail(done.exception()))

    def put(self, begin: int, values: Floats) -> None:
        if self._work.done():
            self._work.result()
        super().put(begin, values)

    def wait(self, begin: int, end: int, timeout: float | None = None) -> Floats:
        with collective():
            return self._stream.wait(begin, end, timeout)

    def result(self, timeout: float | None = None) -> WorkOutcome[Floats]:
        return self._work.wait(timeout)


def _check_addresses(addresses: Sequence[str], job: JobSection, transport: Transport, rows: BlockRows | None) -> None:
    if rows is not None and not addresses:
        raise CollectiveError("rows need the workers' addresses, got none")
    if addresses and transport.port != PORT:
        raise CollectiveError("addresses must not be given with a parameter server, which has no exact sums")
    if addresses and len(addresses) != job.workers:
        raise CollectiveError(f"there must be {job.workers} addresses (job.workers), got {len(addresses)}")
    if addresses and not job.exact_slots:
        raise CollectiveError("job.exact_slots must be a power of two, 2 or more, for exact sums, got 0")


def _side_values(task: Task) -> SideValues:
    """Return side values for the comparison of calls: a 31-bit hash of call and name, dimensions, elements."""
    hashed = zlib.crc32(f"{task.call} {task.key.name}".encode()) >> 1
    return hashed, task.given.ndim, task.given.size
