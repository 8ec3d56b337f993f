"""The agent: a driver with real sockets and a real clock, and the worker's ledger.

It lives on one event loop; the training thread calls `all_reduce` and waits.  Only the loop touches the protocol and
the socket; the residual changes hands with the call, so nothing needs a lock.
"""

import asyncio
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kofn.config.compress import CompressSection
from kofn.config.late_rules import RULES, LateRule, Treatment
from kofn.config.schema import Average, JobSection
from kofn.host.agent.driver import Driver
from kofn.host.agent.gradient_stream import GradientStream, nobody
from kofn.host.agent.iteration_wait import GIVE_UP_AFTER_S, IterationWait
from kofn.host.agent.peer_source import PeerSource, check_settled, settle
from kofn.host.agent.recorder import Recorder
from kofn.host.arrays import Floats, Integers
from kofn.host.compression.age_weight import FOR_EVER, age_weight_of
from kofn.host.compression.aggregate import Aggregate, Sums, aggregate
from kofn.host.compression.encoder import Encoder, Finished
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.ledger import LedgerTotals
from kofn.host.compression.ledger_storage import LedgerStorage
from kofn.host.compression.pieces import Pieces
from kofn.host.compression.plan import Plan
from kofn.host.engine.engine import SharedProtocol, Traffic, WorkerEngine
from kofn.host.errors import AgentError
from kofn.host.protocol.block_layout import BlockLayout
from kofn.host.protocol.instructions import Send
from kofn.host.protocol.results import BlockResults, Result
from kofn.host.stopwatch import UNTIMED, Part, Stopwatch, Times, within_wait
from kofn.host.transport.transport import Transport
from kofn.host.wire import packet as wire
from kofn.host.workload.replica import ReplicaState
from kofn.results.account import Account
from kofn.results.memory import Memory

log = logging.getLogger(__name__)

KEEP_BYTES = 64 << 20
"""Memory for results that peers may still ask for."""

FETCH_BYTES = 4 << 20
"""How much of later iterations is fetched along with a missed one."""

IGNORED = {
    "short_packets": "a datagram that is shorter than a header",
    "other_version": "a packet of another version of kofn",
    "wrong_length": "a packet whose length is not what its header says",
    "damaged": "a packet whose checksum does not fit its content",
}
"""What came and is no packet, by its count in Traffic."""

LAST_ITERATION = 2**32 - 1

STASH = Treatment("stash", 1.0)
"""What is late goes with the next contribution, and weighs as much as ever."""

Ended = tuple[Finished, Sums] | ReplicaState
"""An iteration's end: its results, or a replica that came instead of them."""


class _Exchanged(NamedTuple):
    """What a call came to: when the first block was handed over, and the iterations that have ended."""

    handed_s: float | None
    ended: list[Ended]
    times: Times


class Agent:
    """One worker's place in a job, whose gradients are coded as `coding` says; `ledger_file`: where its ledger
    lives.

    `compress`: what becomes of what coding leaves over, and of the link's rate; `treatment`: of what is late, which is
    discarded once it is older than `age_limit` iterations; `average`: as model.average; `give_up_s`: how long no block
    may close; `beside`: another job's protocol, whose packets go over the same socket.

    `recipients`, (blocks with the summary block,): whose each block's sum is, EVERYONE or a rank; None: everyone's.  To
    the others of a sum that is one worker's only its members come, and no peer holds it.  So an iteration has at most
    as many blocks as there are slots, and no worker may give to the next one before all have the results of this one.
    """

    def __init__(
        self,
        job: JobSection,
        *,
        rank: int,
        coding: JobCoding,
        transport: Transport,
        compress: CompressSection = CompressSection(),  # noqa: B008  # frozen
        ledger_file: Path | None = None,
        average: Average = "gradients",
        treatment: Treatment = STASH,
        age_limit: int = FOR_EVER,
        recorder: Recorder | None = None,
        give_up_s: float = GIVE_UP_AFTER_S,
        beside: SharedProtocol | None = None,
        recipients: Integers | None = None,
    ) -> None:
        self._coding = coding
        self._rank, self._workers, self._average = rank, job.workers, average
        self.decision = 0
        """Number of the last Decision of the controller that this worker has heard."""
        self._packets = _packets(job.packets)
        self._transport = transport
        self._recorder = recorder
        layout = self._coding.layout
        sizes = {"blocks": layout.blocks, "lanes": layout.elements, "width": layout.widest}
        storage = (
            LedgerStorage.in_memory(**sizes, residual=compress.residual)
            if ledger_file is None
            else LedgerStorage.in_file(ledger_file, job=job.id, rank=rank, **sizes, residual=compress.residual)
        )
        self.encoder = Encoder.of(coding, compress, storage, rank)
        self.encoder.window = job.window
        if transport.pace is not None:
            self.encoder.credit = transport.pace.credit_packets(job.words)
        self.ledger = self.encoder.ledger
        self._age_limit = age_limit
        self.iteration = 0
        """The one that the training thread works on; the protocol may be further, to merge what is late."""
        self.age = 0
        """Of the gradient that was contributed last, in iterations."""
        self.over = threading.Event()
        """Set while that is over elsewhere: its gradient comes too late."""
        self._iteration_bytes = iteration_bytes(layout)
        self._recipients = recipients
        if recipients is not None and layout.total > job.slots:
            raise AgentError(
                f"an iteration has {layout.total} blocks: at most {job.slots} (job.slots) are allowed here"
            )
        self.protocol = SharedProtocol(
            job=job.id,
            rank=rank,
            layout=layout,
            slots=job.slots,
            window=job.window,
            rto_s=job.rto_ms / 1000,
            keep=kept_iterations(layout) if recipients is None else 1,
            workers=job.workers,
            probes_link=recipients is None,
        )
        self.ledger.hear(self.protocol)
        self._driver = Driver(
            self.protocol,
            self.encoder,
            self,
            workers=job.workers,
            slices=self._slices,
            recipients=recipients,
        )
        self.treat(treatment)
        self._ignored: set[str] = set()
        self._beside = beside
        self._engine: WorkerEngine | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._iteration_wait = IterationWait(self.protocol, self._ask_slot, workers=job.workers, give_up_s=give_up_s)
        self.times = Times()
        """Where the time of the latest all_reduce() has gone."""
        self.reduced = Times()
        """Of these the engine's thread's, while the event loop waited."""
        self._watch: Stopwatch | None = None  # of the event loop, while it works for all_reduce()
        self._stream: GradientStream | None = None  # while the current iteration's gradient is computed
        self._called = True  # the training thread waits for this loop, or has not begun
        self._begun_before = 0  # the latest iteration that an earlier process of this worker had begun
        self._ended: list[Ended] = []  # what it has not heard of yet

    async def start(
        self,
        first_iteration: int,
        generation: int,
        peer_source: PeerSource,
        *,
        reached: int = 0,
        state: ReplicaState | None = None,
    ) -> None:
        """Listen, and begin the first iteration; `reached`: an iteration known to have begun somewhere.

        `state`: the peer's replica that training goes on from, with the plan of this iteration; None: at the beginning.
        """
        self._loop = asyncio.get_running_loop()
        self._peer_source = peer_source
        opened = self._transport.open(self._loop, self._packets)
        batch = self.encoder.slice_blocks
        self._engine = WorkerEngine(
            self.protocol,
            opened,
            self._transport.pace,
            batch=batch,
            beside=self._beside,
            joins=self._transport.joins,
        )
        self._loop.add_reader(self._engine, self._news)
        self.protocol.enter(generation)
        self.protocol.others_reached(reached)
        if state is not None:
            self.encoder.plan = Plan.from_arrays(state.arrays)
        self.iteration = first_iteration
        self._begin(first_iteration)

    async def close(self) -> None:
        """Stop listening and give the socket back."""
        if self._fetching is not None:
            self._fetching.cancel()
        if self._engine is not None:
            self._loop.remove_reader(self._engine)
            self._engine.close()
        self._transport.close()

    # -- for the training thread

    @property
    def entered(self) -> bool:
        """Whether the current iteration's gradient is in the ledger already: it was computed before a restart."""
        return self.ledger.entered == self.iteration

    def all_reduce(
        self,
        gradient: npt.NDArray[np.float32] | None,
        *,
        begun: int | None = None,
        batch: int = 0,
        stay: bool = False,
        own_end: bool = False,
        stream: GradientStream | None = None,
        good: bool = False,
        out: Floats | None = None,
    ) -> tuple[float | None, list[Aggregate | ReplicaState]]:
        """Contribute a gradient to the current iteration and wait for the iteration's end.

        It was begun in iteration `begun` (None: the current one), as this worker's `batch`-th one there; None where it
        is `entered`.  Where the current iteration is over elsewhere nothing is contributed: the caller is told of all
        that have ended, and calls again.  What was begun before the current iteration is treated as the rule says, and
        an end is waited for only if it counts.  With `stay` none is, with `own_end` only that of iteration `begun`.
        `stream`: where the gradient comes from, piece by piece, while this waits, and where the means of the current
        iteration go.  `good`: compression.codec.check has looked at the gradient.  `out`: where the current iteration's
        mean may be, shape (elements,), apart from the gradient; it is, where no result has come before this call.

        Returns when the first block was encoded (time.monotonic), None for nothing contributed, and the aggregates of
        the iterations that have ended, in order.  A ReplicaState replaces all before it: their results were too old to
        be had.  GradientError for a gradient that is not finite; AgentError when no result or no piece comes for
        `give_up_s`.
        """
        watch = Stopwatch()
        watch.turn("wait")
        gradient = gradient if stream is None else stream.pieces.values
        if gradient is not None and gradient.shape != (self._coding.elements,):
            raise AgentError(f"a gradient of shape {gradient.shape}: ({self._coding.elements},) is allowed")
        since = self.iteration if begun is None else begun
        coroutine = self._exchange(
            gradient, since, batch, stay=stay, own_end=own_end, stream=stream, good=good, out=out
        )
        exchange = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        exchanged = exchange.result()
        watch.turn("decode")
        updates = self._updates(exchanged.ended)
        self.times = within_wait(watch.times(), exchanged.times)
        return exchanged.handed_s, updates

    def catch_up(self) -> list[Aggregate | ReplicaState]:
        """Everything that the others have finished before this worker came; empty where it is not behind."""
        return self.skip() if self.protocol.left_behind else []

    def skip(self) -> list[Aggregate | ReplicaState]:
        """Contribute nothing to the current iteration; returns as all_reduce() does."""
        return self._updates(asyncio.run_coroutine_threadsafe(self._skip(), self._loop).result())

    @property
    def rule(self) -> LateRule:
        return self._driver.rule

    def account(self) -> Account:
        """What became of this worker's gradients so far."""
        return self.ledger.account()

    def link_wait_s(self) -> float | None:
        return self.protocol.take_link_wait_s(self._loop.time())

    def _updates(self, ended: list[Ended]) -> list[Aggregate | ReplicaState]:
        """What training applies, in order."""
        return [
            update
            if isinstance(update, ReplicaState)
            else aggregate(update[0], self._coding, rank=self._rank, average=self._average, sums=update[1])
            for update in ended
        ]

    # -- for the management network, on the event loop

    @property
    def generation(self) -> int:
        """Of the slots that it speaks to."""
        return self.protocol.generation

    async def join_first(self, iteration: int, generation: int, peer_source: PeerSource) -> None:
        """As Reducer; AgentError where the ledger is an earlier run's."""
        if self.ledger.begun:
            raise AgentError(
                f"the job starts, but this worker's ledger is in iteration {self.ledger.begun} of an earlier run:"
                " remove the file, or give another --metrics"
            )
        await self.start(iteration, generation, peer_source)

    async def join_running(
        self, generation: int, peer_source: PeerSource, ask: Callable[[], Awaitable[ReplicaState]]
    ) -> ReplicaState:
        """As Reducer: what this worker had sent before it died is settled first."""
        state, begun = await ask(), self.ledger.begun
        if begun:
            async for results in peer_source.fetch(begun - 1, begun):
                for result in results:
                    self.ledger.settle_results(result)
                    self.ledger.reconcile(result)
        if begun <= state.iteration:
            check_settled(self.ledger, begun)
        self._begun_before = begun
        self.protocol.statistics.resyncs += 1
        log.info("joined: parameters after iteration %d; own ledger was in iteration %d", state.iteration, begun)
        await self.start(state.iteration + 1, generation, peer_source, reached=begun, state=state)
        await self._take_what_peers_have()  # the switch may have been started anew since
        return state

    def held(self, first: int, last: int) -> Iterable[Result]:
        with self.protocol.held():  # a result that is forgotten meanwhile makes room for others
            return list(self.protocol.results(first, last))

    def regroup(self, generation: int) -> None:
        """The switch has lost the job's slots: be silent until resume(); where sums are one worker's, for ever."""
        self.protocol.regroup(generation)
        if self._recipients is not None:
            self.fail(self._lost("the switch was started anew"))

    def fail(self, error: Exception) -> None:
        """This worker cannot go on: the training thread is told."""
        self._iteration_wait.fail(error)

    def treat(self, treatment: Treatment) -> None:
        self._driver.rule = RULES[treatment.rule]
        with self.protocol.held():
            self.ledger.age = age_weight_of(treatment, self._age_limit)
            if (reduction := self.protocol.reduction) is not None:
                self.ledger.reconsider(reduction)

    async def resume(self, generation: int) -> None:
        """Everyone has regrouped: take every result that anyone has, then send what is open."""
        if self._recipients is not None:
            return  # to sum again what others know the members of would count their gradients twice, or lose them
        if self.protocol.iteration:
            await self._take_what_peers_have()
        if generation == self.protocol.generation:  # else another regroup has begun
            with self.protocol.held():
                self._driver.resume(self._loop.time())
            self._look()

    # -- in the end

    def statistics(self) -> dict[str, int]:
        """Of the socket, the protocol and the encoder."""
        traffic = self.traffic
        counts = ("bytes_sent", "bytes_received", "packets_sent", "packets_received", "send_failures")
        statistics = asdict(self.protocol.statistics) | {name: getattr(traffic, name) for name in counts}
        return statistics | {"checksum_errors": traffic.damaged}

    @property
    def traffic(self) -> Traffic:
        """What went over its socket."""
        return Traffic() if self._engine is None else self._engine.traffic

    @property
    def memory(self) -> Memory:
        """Of what is left of gradients."""
        return self.ledger.memory

    def totals(self) -> LedgerTotals:
        return self.ledger.totals()

    # -- on the event loop

    def _begin(self, iteration: int) -> None:
        """The next iteration, or a later one."""
        self._sums = Sums(self._coding, self.encoder.plan, self._average)
        self._driver.begin(iteration, self._loop.time())
        self._look()

    async def _exchange(
        self,
        gradient: npt.NDArray[np.float32] | None,
        begun: int,
        batch: int,
        *,
        stay: bool,
        own_end: bool,
        stream: GradientStream | None,
        good: bool,
        out: Floats | None,
    ) -> _Exchanged:
        self._called, handed_s = True, time.monotonic()
        self._watch, self.reduced = (watch := Stopwatch()), Times()
        pieces = None if stream is None else stream.pieces
        try:
            await self._advance(0)
            current = self.protocol.iteration
            self.age = current - begun
            if self._ended:
                return _Exchanged(None, self._told(), watch.times())
            if out is not None:
                self._sums.into(out)
            if stream is not None:
                await self._open(stream, current=begun == current)
            if gradient is not None:
                with watch.during("encode"):
                    self.encoder.enter(gradient, begun, batch=batch, current=current, pieces=pieces, good=good)
            if pieces is not None:
                self.protocol.in_pieces(pieces.level)
            stay |= own_end and begun < current
            with self.protocol.held():  # once it reduces, the iteration may be over before all is handed over
                waits = self._driver.contribute(begun, batch, self._loop.time(), whole=stay) and not stay
            self._look()
            if pieces is not None:
                await self._iteration_wait.wait_for_pieces(pieces)
                self._feed()
            if waits:
                await self._advance(current)
        except Exception:
            self._halt()
            self._sums.leave()  # what comes now must not go into the caller's array
            raise
        finally:
            self._halt()
            self._driver.drop_encoding()
            self._watch = self._stream = None
            if stream is not None:
                stream.tell(nobody)
        return _Exchanged(handed_s, self._told(), within_wait(watch.times(), self.reduced))

    def _slices(self, iteration: int) -> Iterator[list[int]]:
        """Of the encoder, or where the engine does all that is to be done, nothing for ever."""
        reduction = self.encoder.reduction(iteration)
        if reduction is None:
            return self.encoder.slices(iteration)
        self._sums.reduces(reduction)
        self.protocol.reduce(reduction)
        return repeat([])

    def _halt(self) -> None:
        """The engine does nothing more than to send and to receive."""
        if (done := self.protocol.reduce(None)) is not None:
            self.encoder.reduced(done)
            self.reduced = done.times

    async def _open(self, stream: GradientStream, *, current: bool) -> None:
        """Take its pieces as they come; what is late is treated as a whole."""
        stream.pieces.changed = lambda: self._changed(stream.pieces)
        if not current:
            await self._iteration_wait.wait_for_pieces(stream.pieces)
        else:
            self._stream = stream
            stream.follow(self._sums)
            stream.tell(self.protocol.await_means)

    def _changed(self, pieces: Pieces) -> None:
        """A piece was put, by any thread: it is the engine's, or this loop's."""
        if self.protocol.reduction is None or pieces.whole:
            self._loop.call_soon_threadsafe(self._piece_put)
        self.protocol.wake()

    def _piece_put(self) -> None:
        self._iteration_wait.piece_put()
        self._feed()

    async def _skip(self) -> list[Ended]:
        """Wait for the end of the iteration that the training thread works on."""
        self._called = True
        await self._advance(self.iteration)
        return self._told()

    def _told(self) -> list[Ended]:
        """What the training thread hears of now; it goes on in the protocol's iteration."""
        ended, self._ended = self._ended, []
        if ended:
            self.iteration = self.protocol.iteration
            self.over.clear()
        self._called = False
        self._look()
        self._carry_on()
        return ended

    def _carry_on(self) -> None:
        """While the training thread computes: what waits is for the next iteration, as soon as that begins here."""
        with self._failing():
            while not self._called and self._driver.rule.merges and self.encoder.late:
                if (end := self._iteration_wait.take()) is None:
                    return
                self._end(end)

    def _feed(self) -> None:
        """There may be room for more of the gradient."""
        with self._failing(), self.protocol.held():
            if self._driver.feed(self._loop.time()) and self._engine is not None:
                self._engine.want(self.encoder.slice_blocks)
            self._look()

    async def _advance(self, iteration: int) -> None:
        """Go on until the protocol is beyond this iteration, and in one that is not over elsewhere."""
        while self.protocol.iteration <= iteration or self.protocol.over:
            self._end(await self._iteration_wait.wait())

    def _end(self, end: Sums | ReplicaState) -> None:
        """An iteration is over, or a replica came instead: the next one begins."""
        self._halt()
        if isinstance(end, ReplicaState):
            self._ended.append(end)
            return
        with self.during("decode"):
            finished = self._driver.end()
            if self.protocol.iteration <= self._begun_before:  # the switch may have lost what this ledger has settled
                for result in finished.results:
                    self.ledger.reconcile(result)
            self._ended.append((finished, end))
            if self._recorder is not None:
                self._recorder.add(self.ledger.sent_in(self.protocol.iteration), finished.results)
            self._begin(self.protocol.iteration + 1)

    def _look(self) -> None:
        """After every event: say so when the iteration that the training thread works on is over."""
        if self.protocol.is_over(self.iteration):
            self.over.set()

    def _news(self) -> None:
        """The engine has something for the encoder, or room."""
        with self._failing(), self.protocol.held():
            with self.during("receive"):
                news = self.protocol.news()
            self._driver.follow(news, self._loop.time())
            if self._stream is not None:
                self._stream.follow(self._sums)
            self._feed()
            self._warn()

    def _warn(self) -> None:
        """Say what was wrong with the first datagrams of each kind that were no packets."""
        traffic = self.traffic
        for name, what in IGNORED.items():
            if name not in self._ignored and getattr(traffic, name):
                self._ignored.add(name)
                log.warning("ignored: %s (further ones are only counted)", what)

    async def _take_what_peers_have(self) -> None:
        """From the current iteration on: it is not made again for this worker."""
        async for results in self._peer_source.fetch(self.protocol.iteration, LAST_ITERATION, everyone=True):
            self._take_results(results)

    def _take_results(self, results: list[Result]) -> None:
        with self._failing(), self.protocol.held():
            self._driver.results_in(results, self._loop.time())
            self._feed()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What goes wrong in a callback is the training thread's to hear."""
        try:
            yield
        except Exception as error:  # a codec may be anybody's
            self.fail(error)

    def _ask_slot(self) -> None:
        """Who is missing in a block that does not close?  Perhaps all that comes is no packet."""
        self._warn()
        with self.protocol.held():
            self._driver.ask_slot(self._loop.time())

    # -- what the driver wants done (driver.Effects)

    def during(self, part: Part) -> AbstractContextManager[object]:
        """What the event loop's time goes into, while it works for all_reduce()."""
        return UNTIMED if self._watch is None else self._watch.during(part)

    @property
    def queued(self) -> int:
        """Packets that wait for their turn to leave."""
        return 0 if self._engine is None else self._engine.queued

    def send(self, packets: Sequence[Send]) -> None:
        """The engine does."""

    def delivered(self, results: BlockResults) -> None:
        """Sum up results of the current iteration."""
        if results.iteration == self.protocol.iteration:  # else a replica has come instead
            self._sums.add(results)

    def completed(self) -> None:
        self._iteration_wait.put(self._sums)
        if not self._called:
            self._loop.call_soon(self._carry_on)

    def ask_peers(self) -> None:
        """Fetch the current iteration's results from the peers, unless that is under way."""
        if self._recipients is not None:
            self.fail(self._lost("their slots hold later ones"))
        elif self._fetching is None or self._fetching.done():
            self._fetching = self._loop.create_task(self._fetch())

    def _lost(self, why: str) -> AgentError:
        """Sums that no peer has."""
        return AgentError(
            f"worker {self._rank} lacks sums of iteration {self.protocol.iteration}, blocks"
            f" {self.protocol.missing[:8]}: {why}, and a sum that goes to one worker nobody else has"
        )

    async def _fetch(self) -> None:
        """Ask peers until the current iteration is complete, and for some later ones while they are at it."""
        iteration, gone = self.protocol.iteration, False
        self.protocol.statistics.peer_fetches += 1
        async for results in self._peer_source.fetch(iteration, iteration + FETCH_BYTES // self._iteration_bytes):
            gone = gone or any(result.id.iteration == iteration and not result.values for result in results)
            self._take_results(results)
            if self.protocol.iteration != iteration or not self.protocol.missing:
                return
        if gone:
            with self._failing():
                await self._resync(iteration)

    async def _resync(self, iteration: int) -> None:
        """Nobody holds this iteration's sums any more: take a whole replica instead, and only settle the ledger."""
        state = await self._peer_source.state()
        if state is None or state.iteration < iteration:
            return  # the timer asks again
        self._halt()
        await settle(self.ledger, iteration, self._peer_source)
        if iteration != self.protocol.iteration or not self.protocol.missing:
            return  # its results have come after all
        self.protocol.statistics.resyncs += 1
        self._iteration_wait.put(state)
        self.encoder.plan = Plan.from_arrays(state.arrays)
        self._begin(state.iteration + 1)


def iteration_bytes(layout: BlockLayout) -> int:
    """Return the size of an iteration's results in the widest lanes."""
    return layout.blocks * layout.words * wire.WORD_BYTES


def kept_iterations(layout: BlockLayout) -> int:
    """Return how many iterations' results a worker keeps for its peers."""
    return max(1, KEEP_BYTES // iteration_bytes(layout))


def _packets(name: str) -> ModuleType:
    """The module that encodes and decodes packets: wire.packet, or wire.scapy_layer (Scapy) when asked for."""
    return wire if name == "fast" else importlib.import_module("kofn.host.wire.scapy_layer")
