"""Runs a worker's iterations on its event loop: takes gradients from the training thread and returns sums.

All Python access to the protocol is on this loop. The training thread calls exchange() and skip() through Agent and
blocks until they return.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from kofn_common.config.job import JobSection
from kofn_common.config.model import Average
from kofn_host.agent.data_link import DataLink
from kofn_host.agent.driver import Driver, Effects
from kofn_host.agent.exchange import Contribution
from kofn_host.agent.gradient_feed import GradientFeed
from kofn_host.agent.iteration_wait import IterationWait
from kofn_host.agent.missed_results import MissedResults, kept_iterations
from kofn_host.agent.peer_source import PeerSource
from kofn_host.agent.recorder import Recorder
from kofn_host.arrays import Floats, Integers
from kofn_host.compression.aggregate import Sums
from kofn_host.compression.encoder import Encoder, Finished
from kofn_host.compression.plan import Plan
from kofn_host.engine.engine import EnginePort
from kofn_host.errors import AgentError
from kofn_host.protocol.instructions import AskPeers
from kofn_host.protocol.results import BlockResults, Result
from kofn_host.stopwatch import UNTIMED, Part, Stopwatch, Times, within_wait
from kofn_host.workload.replica import ReplicaState

Ended = tuple[Finished, Sums] | ReplicaState
"""The end of an iteration: its own results, or a peer's replica taken instead."""


class Reached(NamedTuple):
    """The outcome of exchange()."""

    handed_s: float | None  # when exchange() was called, by time.monotonic(); None: the call contributed nothing
    age: int  # the gradient's age, in iterations
    ended: list[Ended]  # the ends that no earlier call has reported
    times: Times  # the times of exchange()'s parts


class ExchangeLoop(Effects):
    """The iterations of one worker; Agent explains the arguments."""

    def __init__(
        self,
        job: JobSection,
        encoder: Encoder,
        link: DataLink,
        *,
        average: Average,
        recorder: Recorder | None,
        give_up_s: float,
        recipients: Integers | None,
    ) -> None:
        layout, private = encoder.coding.layout, recipients is not None
        if private and layout.total > job.slots:
            raise AgentError(
                f"an iteration with recipients must have at most {job.slots} blocks (job.slots), got {layout.total}"
            )
        self._encoder, self._ledger, self._link = encoder, encoder.ledger, link
        self._average, self._recorder = average, recorder
        self.protocol = EnginePort(
            job=job.id,
            rank=encoder.ledger.rank,
            layout=layout,
            slots=job.slots,
            window=job.window,
            rto_s=job.rto_ms / 1000,
            keep=1 if private else kept_iterations(layout),
            workers=job.workers,
            racks=job.racks,
        )
        if not private:
            self.protocol.probe.begin()
        self._ledger.attach_protocol(self.protocol)
        self._wait = IterationWait(self.protocol, self._ask_slot, workers=job.workers, give_up_s=give_up_s)
        self.gradient = GradientFeed(self.protocol, encoder, self._wait, self._feed)
        self.driver = Driver(
            self.protocol, encoder, self, workers=job.workers, slices=self.gradient.slices, recipients=recipients
        )
        self.missed = MissedResults(self.protocol, self._ledger, self, private=private)
        self.iteration = 0
        """The iteration of the training thread; the protocol may be in a later iteration, to merge late gradients."""
        self.over = threading.Event()
        """Set while `iteration` has ended without this worker's gradient, which is therefore late."""
        self._watch: Stopwatch | None = None  # during exchange()
        self._called = True  # True while the training thread waits for this loop, and before its first call
        self._ended: list[Ended] = []  # ends not yet reported to the training thread
        self._unsure = 0  # up to this iteration, the switch may have lost sums that the ledger has booked

    def start(
        self,
        first: int,
        generation: int,
        source: PeerSource,
        *,
        reached: int = 0,
        state: ReplicaState | None = None,
        exact_port: EnginePort | None = None,
    ) -> None:
        """Begin to send and receive, from iteration `first` on; Agent.start() explains the arguments."""
        self._loop = asyncio.get_running_loop()
        self.missed.source = source
        self._link.open(self._loop, self.protocol, self._news, batch=self._encoder.slice_blocks, exact_port=exact_port)
        self.protocol.enter(generation)
        self.protocol.others_reached(reached)
        if state is not None:
            self._unsure = reached
            self._encoder.plan = Plan.from_arrays(state.arrays)
        self.iteration = first
        self._begin(first)

    async def exchange(self, given: Contribution, begun: int, into: Floats | None) -> Reached:
        """Contribute a gradient that was begun in iteration `begun`, and wait for the end of the current iteration.

        If an iteration has ended since the last call, this call contributes nothing. If the gradient stays
        (Contribution.stays), this call does not wait. `into`: memory for the mean of the current iteration.
        """
        self._called, handed_s, stream = True, time.monotonic(), given.stream
        self._watch, self.gradient.reduced = (watch := Stopwatch()), Times()
        pieces = None if stream is None else stream.pieces
        try:
            await self._advance(0)
            current = self.protocol.iteration
            if self._ended:
                return Reached(None, current - begun, self._take_ended(), watch.times())
            if into is not None:
                self.gradient.sums.into(into)
            if stream is not None:
                await self.gradient.open(stream, current=begun == current)
            if (values := given.gradient if pieces is None else pieces.values) is not None:
                with watch.during("encode"):
                    self._encoder.enter(
                        values,
                        begun,
                        batch=given.batch,
                        current=current,
                        pieces=pieces,
                        good=given.good,
                        note=given.note,
                    )
            if pieces is not None:
                self.protocol.in_pieces(pieces.level)
            stays = given.stays or (given.own_end and begun < current)
            with self.protocol.held():  # once the engine has begun to sum, this call may end the iteration
                counts = self.driver.contribute(begun, given.batch, self._loop.time(), whole=stays)
            self._update_over()
            if pieces is not None:
                await self.gradient.finish(pieces)
            if counts and not stays:
                await self._advance(current)
        except Exception:
            self.gradient.halt()
            self.gradient.sums.leave()  # later results must not be written into the caller's array
            raise
        finally:
            self.gradient.halt()
            self.driver.drop_encoding()
            self.gradient.close(stream)
            self._watch = None
        return Reached(handed_s, current - begun, self._take_ended(), within_wait(watch.times(), self.gradient.reduced))

    async def skip(self) -> list[Ended]:
        """Wait for the end of the iteration that the training thread works on."""
        self._called = True
        await self._advance(self.iteration)
        return self._take_ended()

    async def resume(self, generation: int) -> None:
        """Continue after a regroup: fetch all results that peers have, then send the open blocks again."""
        if self.protocol.iteration:
            await self.missed.take_all()
        if generation == self.protocol.generation:  # else another regroup has begun
            with self.protocol.held():
                self.driver.resume(self._loop.time())
            self._update_over()

    def fail(self, error: Exception) -> None:
        """Make the training thread's current or next call raise this error."""
        self._wait.fail(error)

    # -- from iteration to iteration

    def _begin(self, iteration: int) -> None:
        """Begin an iteration: the first, the next, or a later one after a jump."""
        self.gradient.sums = Sums(self._encoder.coding, self._encoder.plan, self._average)
        self.driver.begin(iteration, self._loop.time())
        self._update_over()

    async def _advance(self, beyond: int) -> None:
        """Wait until the protocol is beyond this iteration."""
        while not self.driver.advance(beyond):
            await self._wait.wait()

    def next_iteration(self) -> None:
        """End the current iteration, keep its sums for the training thread, and begin the next one."""
        self.gradient.halt()
        with self.during("decode"):
            finished = self.driver.end()
            if self.protocol.iteration <= self._unsure:
                for result in finished.results:
                    self._ledger.reconcile(result)
            self._ended.append((finished, self.gradient.sums))
            if self._recorder is not None:
                self._recorder.add(self._ledger.sent.whole(self.protocol.iteration), finished.results)
            self._ledger.state.ended(self.protocol.iteration, self.protocol.iteration)
            self._begin(self.protocol.iteration + 1)

    def _take_ended(self) -> list[Ended]:
        """Take the ends not yet reported; if there are any, the training thread moves to the protocol's iteration."""
        ended, self._ended = self._ended, []
        if ended:
            self.iteration = self.protocol.iteration
            self.over.clear()
        self._called = False
        self._update_over()
        self._carry_on()
        return ended

    def _carry_on(self) -> None:
        """Let the protocol advance while the training thread computes, so that late gradients are merged."""
        if not self._called:
            with self._failing():
                self.driver.advance(None)

    def _update_over(self) -> None:
        """Set `over` if the training thread's iteration is over."""
        if self.protocol.is_over(self.iteration):
            self.over.set()

    # -- events

    def _news(self) -> None:
        """Handle events of the engine: results have come, or the send queue has room."""
        with self._failing(), self.protocol.held():
            with self.during("receive"):
                news = self.protocol.news()
            self.driver.follow(news, self._loop.time())
            self.gradient.follow()
            self._feed()
            self._link.warn()

    def _feed(self) -> None:
        """Encode more of the gradient while the send queue has room."""
        with self._failing(), self.protocol.held():
            if self.driver.feed(self._loop.time()):
                self._link.want(self._encoder.slice_blocks)
            self._update_over()

    def take_results(self, results: list[Result]) -> None:
        """Handle results from peers."""
        with self._failing(), self.protocol.held():
            self.driver.results_in(results, self._loop.time())
            self._feed()

    def follow(self, follows: bool) -> None:
        """Expect results from a peer, or from the switch again."""
        if self.protocol.follows != follows:
            with self._failing(), self.protocol.held():
                self.driver.follow_peer(follows, self._loop.time())

    def halt(self) -> None:
        """Make the engine stop using the ledger's memory."""
        self.gradient.halt()

    def jump(self, state: ReplicaState) -> None:
        """Replace the current iteration by a peer's replica, and begin the iteration after the replica's iteration."""
        self._ended.append(state)
        self._wait.ended()
        self._ledger.state.ended(self.protocol.iteration, state.iteration)
        self._encoder.plan = Plan.from_arrays(state.arrays)
        self._begin(state.iteration + 1)

    def _ask_slot(self) -> None:
        """Ask the switch which workers have not contributed to a block that stays open; log ignored datagrams."""
        self._link.warn()
        with self.protocol.held():
            self.driver.ask_slot(self._loop.time())

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Pass an error that a callback raises on to the training thread."""
        try:
            yield
        except Exception as error:  # a custom codec may raise anything
            self.fail(error)

    # -- the driver's callbacks (driver.Effects)

    def during(self, part: Part) -> AbstractContextManager[object]:
        """Time one part of exchange(); do nothing while it does not run."""
        return UNTIMED if self._watch is None else self._watch.during(part)

    @property
    def queued(self) -> int:
        return self._link.queued

    def delivered(self, results: BlockResults) -> None:
        """Add results of the current iteration to its sums."""
        if results.iteration == self.protocol.iteration:  # otherwise a replica has replaced that iteration
            self.gradient.sums.add(results)

    def completed(self) -> None:
        self._wait.ended()
        if not self._called:
            self._loop.call_soon(self._carry_on)

    def ask_peers(self, asked: Sequence[AskPeers]) -> None:
        self.missed.ask(asked)
