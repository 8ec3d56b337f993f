"""All-reduce through the switch, or through a parameter server: both answer by the same rules, so workers are the same.

A call is one iteration of an Agent, whatever its arrays: they are joined into one gradient of the job's size, the rest
of which is zeros.  What a codec leaves over, and what came too late, is in the ledger and goes with the next call.
"""

from collections.abc import AsyncIterator, Sequence

import numpy as np

from kofn.config.compress import CompressSection
from kofn.config.schema import Average, JobSection
from kofn.host.agent.agent import Agent
from kofn.host.agent.iteration_wait import GIVE_UP_AFTER_S
from kofn.host.agent.peer_source import PeerSource
from kofn.host.arrays import Floats
from kofn.host.collectives.collective import Calls, Form, Reduced
from kofn.host.compression.aggregate import Aggregate
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.side_values import SideValues
from kofn.host.errors import CollectiveError, HostError
from kofn.host.protocol.history import Result
from kofn.host.stopwatch import OnShare, Stopwatch, within_wait
from kofn.host.transport.event_loop import EventLoop
from kofn.host.transport.udp import Transport
from kofn.host.workload.replica import ReplicaState


class Nobody:
    """PeerSource where nobody is needed: a sum that needs every worker stays in the switch until all have it."""

    async def fetch(self, first: int, last: int, *, everyone: bool = False) -> AsyncIterator[list[Result]]:
        nothing: list[list[Result]] = []
        for results in nothing:
            yield results

    async def state(self) -> ReplicaState | None:
        return None


class InNetwork(Calls):
    """A Collective of a job's workers; `transport` leads to its switch, or to its server.

    `elements`: of the largest call; every call sends as many.  `first_iteration`, `generation`: as the switch or server
    has them.  `peer_source`: the other workers, who are needed where fewer than all complete a sum; `timeout_s`: how
    long no block may close.  CollectiveError where the address cannot be had.

    The workers agree on shapes as they reduce: a note beside the gradient says each one's (compression.side_values).
    Where fewer than all complete a sum, a worker that differs learns it at once, the others once it is in a sum.
    """

    TRANSLATED = HostError

    def __init__(
        self,
        rank: int,
        elements: int,
        *,
        job: JobSection,
        transport: Transport,
        compress: CompressSection = CompressSection(),  # noqa: B008  # frozen
        average: Average = "gradients",
        peer_source: PeerSource | None = None,
        first_iteration: int = 1,
        generation: int = 0,
        timeout_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self.rank, self.workers = rank, job.workers
        self._transport, self._closed = transport, False
        self._coding = JobCoding.of(job, compress, elements, notes=True)
        self.agent = Agent(
            job,
            rank=rank,
            coding=self._coding,
            transport=transport,
            compress=compress,
            average=average,
            give_up_s=timeout_s,
        )
        """For those who serve its results to other workers, and for its statistics."""
        self._loop = EventLoop()
        self._loop.run(self.agent.start(first_iteration, generation, peer_source or Nobody()))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._failed = self._failed or "it is closed"
            self._loop.run(self.agent.close())
            self._loop.close()

    def _blame(self, error: Exception) -> str:
        return f"worker {self.rank}: {error}"

    def _reduce(self, arrays: Sequence[Floats], on_share: OnShare | None) -> Reduced:
        """One iteration, and those that the others have finished meanwhile."""
        watch = Stopwatch()
        watch.turn("encode")
        form = Form.of(arrays)
        gradient = self._gradient(form, arrays)
        self.agent.encoder.note = note = (form.digest, len(form.shapes), form.elements)
        traffic = self._transport.traffic
        sent, received = traffic.bytes_sent, traffic.bytes_received
        watch.turn("wait")
        call, handed_s, updates = self.agent.iteration, None, list[Aggregate | ReplicaState]()
        while handed_s is None:  # late: what has ended meanwhile is told first
            handed_s, ended = self.agent.all_reduce(gradient, begun=call, on_share=on_share)
            updates += ended
        watch.turn("decode")
        first, *later = [self._checked(update, note, form) for update in updates]
        reduced, skipped = form.split(first.mean), [form.split(update.mean) for update in later]
        if on_share is not None:
            on_share(1.0)
        return Reduced(
            arrays=reduced,
            count=first.least,
            times=within_wait(watch.times(), self.agent.times),
            sent_bytes=traffic.bytes_sent - sent,
            received_bytes=traffic.bytes_received - received,
            skipped=skipped,
        )

    def _gradient(self, form: Form, arrays: Sequence[Floats]) -> Floats:
        """All arrays as one, shape (elements,)."""
        if form.elements > self._coding.elements:
            raise CollectiveError(
                f"{form} with {form.elements:,} elements: this job has room for {self._coding.elements:,}"
            )
        gradient = np.empty(self._coding.elements, np.float32)
        gradient[form.elements :] = 0
        try:
            form.join(arrays, gradient)
        except CollectiveError as error:
            raise CollectiveError(f"worker {self.rank}: {error}") from error
        return gradient

    def _checked(self, update: Aggregate | ReplicaState, note: SideValues, form: Form) -> Aggregate:
        """An iteration whose workers have all given the same shapes."""
        if isinstance(update, ReplicaState):
            raise CollectiveError(
                f"worker {self.rank} was away for so long that nobody holds the sums any more that it has missed"
            )
        for rank, theirs in update.notes.items():
            if theirs != note:
                _, arrays, elements = theirs
                raise CollectiveError(
                    f"the workers' calls differ: worker {rank} gives {arrays} arrays with {elements} elements together,"
                    f" worker {self.rank} gives {form} with {form.elements}"
                )
        return update
