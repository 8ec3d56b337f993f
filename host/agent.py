"""The agent: drives the protocol with real sockets and a real clock, and keeps the worker's books.

It lives on one event loop; the training thread calls `all_reduce` and waits.  Only the loop touches the protocol and
the socket; the residual changes hands with the call, so nothing needs a lock.
"""

import asyncio
import concurrent.futures
import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from host import wire
from host.account import Account
from host.age import FOR_EVER, age_weight_of
from host.aggregate import Aggregate, Sums, aggregate
from host.alarm import Alarm
from host.coding import Coding
from host.collective import Part, Progress, Stopwatch, Times, within_wait
from host.datagrams import Packet
from host.encoder import Encoder, Finished
from host.ending import GIVE_UP_AFTER_S, Ending
from host.errors import AgentError, ChecksumError, HostError, WireError
from host.history import Result
from host.holders import Holders, check_settled, settle
from host.instructions import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Send
from host.pages import Pages
from host.plan import Plan
from host.protocol import Protocol
from host.record import Recorder
from host.replica import State
from host.residual import Books
from host.transport import Transport
from run.compression import Compress
from run.config import Average, Job
from run.late import RULES, Treatment

log = logging.getLogger(__name__)

KEEP_BYTES = 64 << 20
"""Memory for results that peers may still ask for."""

FETCH_BYTES = 4 << 20
"""How much of later iterations is fetched along with a missed one."""

LAST_ITERATION = 2**32 - 1

PROGRESS_S = 0.05
"""Between two words to the caller of how far a call is."""


STASH = Treatment("stash", 1.0)
"""What is late goes with the next contribution, and weighs as much as ever."""

Ended = tuple[Finished, Sums] | State
"""An iteration's end: its results, or a replica that came instead of them."""


class _Exchanged(NamedTuple):
    """What a call came to: when the first block was handed over, and the iterations that have ended."""

    handed_s: float | None
    ended: list[Ended]
    times: Times


class Agent:
    """One worker's place in a job, whose gradients are coded as `coding` says; `books`: a file for them to live in.

    `compress`: what becomes of what coding leaves over, and of the link's rate; `treatment`: of what is late, which is
    discarded once it is older than `age_limit` iterations; `average`: as model.average; `give_up_s`: how long no block
    may close.
    """

    def __init__(
        self,
        job: Job,
        *,
        rank: int,
        coding: Coding,
        transport: Transport,
        compress: Compress = Compress(),  # noqa: B008  # frozen
        books: Path | None = None,
        average: Average = "gradients",
        treatment: Treatment = STASH,
        age_limit: int = FOR_EVER,
        recorder: Recorder | None = None,
        give_up_s: float = GIVE_UP_AFTER_S,
    ) -> None:
        self._coding = coding
        self._rank, self._workers, self._average = rank, job.workers, average
        self.decision = 0
        """Number of the last Decision of the controller that this worker has heard."""
        self._packets = _packets(job.packets)
        self._transport = transport
        self._recorder = recorder
        shape = self._coding.shape
        sizes = {"blocks": shape.blocks, "lanes": shape.elements}
        pages = Pages.in_memory(**sizes) if books is None else Pages.in_file(books, job=job.id, rank=rank, **sizes)
        self.encoder = Encoder.of(coding, compress, pages, rank)
        self.residual = self.encoder.residual
        self._age_limit = age_limit
        self.treat(treatment)
        self.iteration = 0
        """The one that the training thread works on; the protocol may be further, to merge what is late."""
        self.age = 0
        """Of the gradient that was contributed last, in iterations."""
        self.over = threading.Event()
        """Set while that is over elsewhere: its gradient comes too late."""
        self._iteration_bytes = shape.blocks * job.words * wire.WORD_BYTES
        self.protocol = Protocol(
            job=job.id,
            rank=rank,
            shape=shape,
            slots=job.slots,
            window=job.window,
            rto_s=job.rto_ms / 1000,
            keep=max(2, KEEP_BYTES // self._iteration_bytes),
        )
        self._refused: set[type[WireError]] = set()
        self._done: dict[type[Instruction], Callable[[Any], None]] = {
            Send: self._send,
            Deliver: self._deliver,
            Complete: self._complete,
            EncodeAgain: self._encode_again,
            AskPeers: self._ask_peers,
        }
        self._alarm = Alarm(self._time_out)
        self._fetching: asyncio.Task[None] | None = None
        self._ending = Ending(self.protocol, self._ask, workers=job.workers, give_up_s=give_up_s)
        self.times = Times()
        """Where the time of the latest all_reduce() has gone."""
        self._watch: Stopwatch | None = None  # of the event loop, while it works for all_reduce()
        transport.turn, transport.more = self._turn, self._feed
        self._slices: Iterator[list[int]] | None = None
        """What is still to be encoded of the gradient that all_reduce() waits for."""
        self._meanwhile: Callable[[], object] = lambda: None
        """What is to be done after that."""
        self._called = True  # the training thread waits for this loop, or has not begun
        self._ended: list[Ended] = []  # what it has not heard of yet

    async def start(
        self, first_iteration: int, generation: int, holders: Holders, *, reached: int = 0, state: State | None = None
    ) -> None:
        """Listen, and begin the first iteration; `reached`: an iteration known to have begun somewhere.

        `state`: the peer's replica that training goes on from, with the plan of this iteration; None: at the beginning.
        """
        self._loop = asyncio.get_running_loop()
        self._holders = holders
        self._transport.listen(self._loop, self._take, self._refuse, self._packets)
        self.protocol.enter(generation)
        self.protocol.others_reached(reached)
        if state is not None:
            self.encoder.plan = Plan.from_arrays(state.arrays)
        self.iteration = first_iteration
        self._begin(first_iteration)

    async def close(self) -> None:
        """Stop listening and give the socket back."""
        self._alarm.cancel()
        if self._fetching is not None:
            self._fetching.cancel()
        self._transport.close()

    # -- for the training thread

    @property
    def entered(self) -> bool:
        """Whether the current iteration's gradient is in the books already: it was computed before a restart."""
        return self.residual.entered == self.iteration

    def all_reduce(
        self,
        gradient: npt.NDArray[np.float32] | None,
        *,
        begun: int | None = None,
        batch: int = 0,
        stay: bool = False,
        progress: Progress | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> tuple[float | None, list[Aggregate | State]]:
        """Contribute a gradient to the current iteration and wait for the iteration's end.

        It was begun in iteration `begun` (None: the current one), as this worker's `batch`-th one there; None where it
        is `entered`.  Where the current iteration is over elsewhere nothing is contributed: the caller is told of all
        that have ended, and calls again.  What was begun before the current iteration is treated as the rule says, and
        an end is waited for only if it counts.  With `stay` none is.  `meanwhile` is called on the event loop when all
        is encoded, while the last blocks wait to leave: before that other workers of this machine may need its
        processors.

        Returns when the first block was encoded (time.monotonic), None for nothing contributed, and the aggregates of
        the iterations that have ended, in order.  A State among them replaces all before it: the results were too old
        to be had.  GradientError for a gradient that is not finite; AgentError when no result comes for `give_up_s`.
        """
        watch = Stopwatch()
        watch.turn("wait")
        if gradient is not None and gradient.shape != (self._coding.elements,):
            raise AgentError(f"a gradient of shape {gradient.shape}: ({self._coding.elements},) is allowed")
        since = self.iteration if begun is None else begun
        coroutine = self._exchange(gradient, since, batch, stay=stay, meanwhile=meanwhile)
        exchange = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while progress is not None and not concurrent.futures.wait([exchange], PROGRESS_S).done:
            progress(self.protocol.share)
        exchanged = exchange.result()
        watch.turn("decode")
        updates = self._updates(exchanged.ended)
        self.times = within_wait(watch.times(), exchanged.times)
        return exchanged.handed_s, updates

    def catch_up(self) -> list[Aggregate | State]:
        """Everything that the others have finished before this worker came; empty where it is not behind."""
        return self.skip() if self.protocol.left_behind else []

    def skip(self) -> list[Aggregate | State]:
        """Contribute nothing to the current iteration; returns as all_reduce() does."""
        return self._updates(asyncio.run_coroutine_threadsafe(self._skip(), self._loop).result())

    def account(self) -> Account:
        """What became of this worker's gradients so far."""
        return self.residual.account()

    def _updates(self, ended: list[Ended]) -> list[Aggregate | State]:
        """What training applies, in order."""
        return [
            update
            if isinstance(update, State)
            else aggregate(update[0], self._coding, rank=self._rank, average=self._average, sums=update[1])
            for update in ended
        ]

    # -- for the management network, on the event loop

    @property
    def generation(self) -> int:
        """Of the slots that it speaks to."""
        return self.protocol.generation

    async def join_first(self, iteration: int, generation: int, holders: Holders) -> None:
        """As Reducer; AgentError where the books are an earlier run's."""
        if self.residual.begun:
            raise AgentError(
                f"the job starts, but this worker's books are in iteration {self.residual.begun} of an earlier run:"
                " remove the file, or give another --metrics"
            )
        await self.start(iteration, generation, holders)

    async def join_running(self, generation: int, holders: Holders, ask: Callable[[], Awaitable[State]]) -> State:
        """As Reducer: what this worker had sent before it died is settled first."""
        state, begun = await ask(), self.residual.begun
        if begun:
            async for results in holders.fetch(begun - 1, begun):
                for result in results:
                    self.residual.settle(result)
                    self.residual.reconcile(result)
        if begun <= state.iteration:
            check_settled(self.residual, begun)
        self.protocol.statistics.resyncs += 1
        log.info("joined: parameters after iteration %d; own books were in iteration %d", state.iteration, begun)
        await self.start(state.iteration + 1, generation, holders, reached=begun, state=state)
        return state

    def held(self, first: int, last: int) -> Iterable[Result]:
        """As Reducer."""
        return self.protocol.results(first, last)

    def regroup(self, generation: int) -> None:
        """The switch has lost the job's slots: be silent until resume()."""
        self.protocol.regroup(generation)

    def fail(self, error: HostError) -> None:
        """This worker cannot go on: the training thread is told."""
        self._ending.fail(error)

    def treat(self, treatment: Treatment) -> None:
        """As Reducer."""
        self.rule = RULES[treatment.rule]
        self.residual.age = age_weight_of(treatment, self._age_limit)

    async def resume(self, generation: int) -> None:
        """Everyone has regrouped: take every result that anyone has, then send what is open."""
        if current := self.protocol.iteration:
            async for results in self._holders.fetch(current, LAST_ITERATION, everyone=True):
                self._take_results(results)
        if generation == self.protocol.generation:  # else another regroup has begun
            self._follow(self.protocol.resume(asyncio.get_running_loop().time()))

    # -- in the end

    def statistics(self) -> dict[str, int]:
        """Of the socket, the protocol and the encoder."""
        traffic = asdict(self._transport.traffic)
        return traffic | asdict(self.protocol.statistics) | {"wire_bytes": self.encoder.sent_bytes}

    def books(self) -> Books:
        """As Reducer."""
        return self.residual.books()

    # -- on the event loop

    def _begin(self, iteration: int) -> None:
        """Begin an iteration by its plan; what has waited for a whole one is merged into it."""
        self._encoded()
        self.encoder.begin(iteration)
        self._sums = Sums(self._coding, self.encoder.plan, self._average)
        begin = self.protocol.jump if self.protocol.missing else self.protocol.begin
        self._follow(begin(iteration, self._loop.time(), self.encoder.blocks, self.encoder.plan.lanes))
        if self._may_merge and not self.protocol.over and self.encoder.waits_since(iteration - 1):
            self._contribute_waiting(counts=False)

    async def _exchange(
        self,
        gradient: npt.NDArray[np.float32] | None,
        begun: int,
        batch: int,
        *,
        stay: bool,
        meanwhile: Callable[[], object],
    ) -> _Exchanged:
        """As all_reduce() says."""
        self._called, handed_s = True, time.monotonic()
        self._watch = watch = Stopwatch()
        try:
            await self._advance(0)
            current = self.protocol.iteration
            self.age = current - begun
            if self._ended:
                return _Exchanged(None, self._told(), watch.times())
            self._turn("encode")
            if gradient is not None:
                self.encoder.enter(gradient, begun, batch=batch, current=current)
            late = begun < current
            if late and not self.rule.counts:
                self.encoder.enter_rest()
                if self._may_merge:
                    self._contribute_waiting(counts=False)
                meanwhile()
            elif batch:
                self._contribute_waiting(counts=True)
            else:
                self._slices, self._meanwhile = self.encoder.slices(current), meanwhile
                self._feed()
            if stay or (late and not self.rule.counts):
                self._feed(whole=True)
            else:
                await self._advance(current)
        finally:
            self._watch = self._slices = None
        return _Exchanged(handed_s, self._told(), watch.times())

    async def _skip(self) -> list[Ended]:
        """Wait for the end of the iteration that the training thread works on."""
        self._called = True
        await self._advance(self.iteration)
        return self._told()

    @property
    def _is_late(self) -> bool:
        """Whether the iteration that the training thread works on is over."""
        return self.protocol.over or self.protocol.iteration > self.iteration

    @property
    def _may_merge(self) -> bool:
        """Whether sums have room for what is not counted: where all are waited for it goes with what is."""
        return self.rule.merges and self.protocol.k < self._workers

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

    def _contribute_waiting(self, *, counts: bool) -> None:
        """Contribute what waits as another part, beside what this worker gives to the iteration anyway."""
        before = self._turn("encode")
        part, blocks = self.encoder.encode_part(self.protocol.iteration, self.protocol.open, counts=counts)
        self._turn(before)
        self._contribute(blocks, part=part, counts=counts)

    def _carry_on(self) -> None:
        """While the training thread computes: what waits is for the next iteration, as soon as that begins here."""
        with self._failing():
            while not self._called and self.rule.merges and self.encoder.waits:
                if (end := self._ending.take()) is None:
                    return
                self._end(end)

    def _feed(self, *, whole: bool = False) -> None:
        """Encode and contribute slice by slice, so that there is always something that waits to leave, and not much.

        `whole`: all that is left, however much waits then.
        """
        ahead, protocol, transport = self.encoder.slice_blocks, self.protocol, self._transport
        with self._failing():
            while self._slices is not None and (whole or len(protocol.waiting) + transport.waiting < ahead):
                before = self._turn("encode")
                blocks = None if protocol.over else next(self._slices, None)
                self._turn("send")
                if blocks is None:
                    self._encoded()
                else:
                    self._contribute(blocks)
                self._turn(before)

    def _encoded(self) -> None:
        """Nothing is to be encoded any more of the gradient that all_reduce() waits for, if it does."""
        if self._slices is not None:
            self._slices = None
            before = self._turn("encode")
            self.encoder.enter_rest()
            self._turn("wait")
            self._meanwhile()
            self._turn(before)

    async def _advance(self, iteration: int) -> None:
        """Go on until the protocol is beyond this iteration, and in one that is not over elsewhere."""
        while self.protocol.iteration <= iteration or self.protocol.over:
            self._end(await self._ending.wait())

    def _end(self, end: Sums | State) -> None:
        """An iteration is over, or a replica came instead: the next one begins."""
        self._encoded()
        if isinstance(end, State):
            self._ended.append(end)
            return
        before = self._turn("decode")
        finished = self.encoder.follow([end.results[block] for block in self.protocol.blocks])
        self._ended.append((finished, end))
        if self._recorder is not None:
            self._recorder.add(self.residual.sent_in(self.protocol.iteration), finished.results)
        self._begin(self.protocol.iteration + 1)
        self._turn(before)

    def _look(self) -> None:
        """Say so when the iteration that the training thread works on is over."""
        if self._is_late:
            self.over.set()

    def _turn(self, part: Part) -> Part:
        """What the event loop's time goes into from now on; returns what it went into before."""
        return part if self._watch is None else self._watch.turn(part)

    def _take(self, packets: list[Packet]) -> None:
        """Packets have come."""
        with self._failing():
            if self._ending.asks:
                packets = [packet for packet in packets if not self._ending.hears(packet[0])]
            self._follow(self.protocol.packets_in(packets, self._loop.time()))
            self._narrow()
            self._feed()

    def _refuse(self, error: WireError) -> None:
        """Count a bad datagram; say what is wrong with the first of its kind."""
        self.protocol.statistics.checksum_errors += isinstance(error, ChecksumError)
        if type(error) not in self._refused:
            self._refused.add(type(error))
            log.warning("ignored: %s (further ones are only counted)", error)

    def _take_results(self, results: list[Result]) -> None:
        """A peer has answered."""
        with self._failing():
            for result in results:
                self._follow(self.protocol.result_in(result, self._loop.time()))
            self._feed()

    def _time_out(self) -> None:
        """The earliest deadline has passed, unless an answer has come that nobody has looked at."""
        self._transport.look()
        with self._failing():
            self._follow(self.protocol.timer(self._loop.time()))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What goes wrong in a callback is the training thread's to hear."""
        try:
            yield
        except Exception as error:  # a codec may be anybody's
            self._ending.fail(error)

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        """Do what the protocol says: neighbours of a kind are done together."""
        for kind, alike in groupby(instructions, type):
            self._done[kind](list(alike))
        self._look()
        self._alarm.set(self.protocol.deadline, self._loop)

    def _deliver(self, delivered: Sequence[Deliver]) -> None:
        """Results of the current iteration."""
        self.encoder.settle(delivered, self._loop.time())
        before = self._turn("decode")
        self._sums.add([result for result, _ in delivered])
        self._turn(before)

    def _complete(self, _: Sequence[Complete]) -> None:
        """Those are all."""
        self._ending.put(self._sums)
        if not self._called:
            self._loop.call_soon(self._carry_on)

    def _encode_again(self, wanted: Sequence[EncodeAgain]) -> None:
        """Slots sum at other scales, or in other lanes."""
        before = self._turn("encode")
        for again in wanted:
            self.encoder.again(again.block, self.protocol.iteration, again.scale, again.lanes, again.part)
        self._turn(before)
        for part, counts in {(again.part, again.counts) for again in wanted}:
            self._contribute([again.block for again in wanted if again.part == part], part=part, counts=counts)

    def _ask(self, inquiry: wire.Header) -> None:
        """A question that is none of the protocol's."""
        self._transport.send([(inquiry, bytes(inquiry.words * wire.WORD_BYTES))])

    def _send(self, packets: Sequence[Send]) -> None:
        """Packets leave, now or in their turn."""
        before = self._turn("send")
        for header, values in packets:
            if header.kind == wire.Kind.CONTRIBUTE:
                self.encoder.left(header.block, values, header.part)
        for (header, _), leaves_s in zip(packets, self._transport.send(packets), strict=True):
            if leaves_s is not None:
                self.protocol.leaves(header, leaves_s)
        self._turn(before)

    def _narrow(self) -> None:
        """Where the iteration has gone over to narrower lanes, hand over what still waits in these."""
        if blocks := self.encoder.narrowed(self.protocol.waiting, self.protocol.iteration):
            self._contribute(blocks)

    def _contribute(self, blocks: Sequence[int], *, part: int = 0, counts: bool = True) -> None:
        """Hand blocks to the protocol, as they are noted in the books."""
        ready, now = self.encoder.all_packed(blocks, part), self._loop.time()
        uses = self.encoder.uses
        self._follow(self.protocol.contribute_all(ready, part=part, counts=counts, uses=uses, now=now))

    def _ask_peers(self, _: Sequence[AskPeers]) -> None:
        """Fetch the current iteration's results from the peers, unless that is under way."""
        if self._fetching is None or self._fetching.done():
            self._fetching = self._loop.create_task(self._fetch())

    async def _fetch(self) -> None:
        """Ask peers until the current iteration is complete, and for some later ones while they are at it."""
        iteration, gone = self.protocol.iteration, False
        self.protocol.statistics.peer_fetches += 1
        async for results in self._holders.fetch(iteration, iteration + FETCH_BYTES // self._iteration_bytes):
            gone = gone or any(result.id.iteration == iteration and not result.values for result in results)
            self._take_results(results)
            if self.protocol.iteration != iteration or not self.protocol.missing:
                return
        if gone:
            with self._failing():
                await self._resync(iteration)

    async def _resync(self, iteration: int) -> None:
        """Nobody holds this iteration's sums any more: take a whole replica instead, and only settle the books."""
        state = await self._holders.state()
        if state is None or state.iteration < iteration:
            return  # the timer asks again
        await settle(self.residual, iteration, self._holders)
        if iteration != self.protocol.iteration or not self.protocol.missing:
            return  # its results have come after all
        self.protocol.statistics.resyncs += 1
        self._ending.put(state)
        self.encoder.plan = Plan.from_arrays(state.arrays)
        self._begin(state.iteration + 1)


def _packets(name: str) -> ModuleType:
    """The module that encodes and decodes packets: host.wire, or host.packets (Scapy) when asked for."""
    return wire if name == "fast" else importlib.import_module("host.packets")
