"""The agent: drives the protocol with real sockets and a real clock, and keeps the worker's books.

It lives on one event loop; the training thread calls `all_reduce` and waits.  Only the loop touches the protocol and
the socket; `_sent` and the residual change hands with the call, so nothing needs a lock.
"""

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from host import wire
from host.compress import FRACTION_BITS, Fixed, FixedPoint, to_fixed
from host.errors import AgentError, HostError, WireError
from host.protocol import AskPeers, Complete, Deliver, EncodeAgain, Instruction, Protocol, Result, Send
from host.record import Recorder
from host.residual import Residual
from host.transport import Transport
from run.config import Job

log = logging.getLogger(__name__)

EXPLAIN_AFTER_S = 2.0
GIVE_UP_AFTER_S = 60.0
KEEP_BYTES = 64 << 20
"""Memory for results that peers may still ask for."""

FetchResults = Callable[[int], AsyncIterator[list[Result]]]
"""Asks one peer after another for an iteration's results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it."""

    iteration: int
    mean: npt.NDArray[np.float32]
    k: int
    count: int
    members: list[int]
    late: bool


class Agent:
    """One worker's place in a job, for gradients of `elements` float32 values."""

    def __init__(
        self, job: Job, *, rank: int, elements: int, transport: Transport, recorder: Recorder | None = None
    ) -> None:
        lanes = job.words * wire.WORD_BYTES // 4
        self._elements = elements
        self._blocks = -(-elements // lanes)
        self._rank = rank
        self._codec = FixedPoint(workers=job.workers, gradient_range=job.gradient_range)
        self._packets = _packet_codec(job.codec)
        self._transport = transport
        self._recorder = recorder
        self.residual = Residual(blocks=self._blocks, elements_per_block=lanes)
        self.results_total: Fixed = np.zeros((self._blocks, lanes), np.int64)
        self.protocol = Protocol(
            job=job.id,
            rank=rank,
            blocks=self._blocks,
            words=job.words,
            slots=job.slots,
            window=job.window,
            rto_s=job.rto_ms / 1000,
            keep=max(2, KEEP_BYTES // (self._blocks * job.words * wire.WORD_BYTES)),
        )
        self._sent = np.zeros((self._blocks, lanes), np.int32)
        self._sent_scale = np.full(self._blocks, self._codec.scale)
        self._delivered: dict[int, Result] = {}
        self._complete = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failure: HostError | None = None

    async def start(self, first_iteration: int, fetch_results: FetchResults) -> None:
        """Listen, and begin the first iteration."""
        self._loop = asyncio.get_running_loop()
        self._fetch_results = fetch_results
        self._transport.listen(self._loop, self._take)
        self._follow(self.protocol.begin(first_iteration, self._loop.time()))

    async def close(self) -> None:
        """Stop listening and give the socket back."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fetching is not None:
            self._fetching.cancel()
        self._transport.close()

    # -- for the training thread

    def all_reduce(self, gradient: npt.NDArray[np.float32]) -> tuple[float, list[Aggregate]]:
        """Contribute the current iteration's gradient and wait for its end.

        Returns when the first block was handed to the network (time.monotonic) and the iteration's aggregate, followed
        by those of all later iterations that the others have finished meanwhile.  GradientError for a gradient that is
        not finite; AgentError when no result comes for a minute.
        """
        if gradient.shape != (self._elements,):
            raise AgentError(f"a gradient of shape {gradient.shape}: ({self._elements},) is allowed")
        self.residual.add(to_fixed(gradient))
        self._sent_scale[:] = self._codec.scale
        self._sent = self._codec.encode(self.residual.pending, self._codec.scale)
        packed = wire.pack_values(self._sent)
        handed_s = time.monotonic()
        finished = asyncio.run_coroutine_threadsafe(self._exchange(packed), self._loop).result()
        if self._recorder is not None:
            for sent, results in zip([self._sent] + [None] * len(finished), finished, strict=False):
                self._recorder.add(sent, results)
        return handed_s, [self._aggregate(results) for results in finished]

    def _aggregate(self, results: list[Result]) -> Aggregate:
        """Average block by block: sum / count of that block, never sum / n."""
        total = wire.unpack_values(b"".join(result.values for result in results)).reshape(self._sent.shape)
        scale = np.array([[result.scale] for result in results])
        count = np.array([[result.count] for result in results])
        self.results_total += self._codec.counted(total, scale)
        first = results[0]
        return Aggregate(
            iteration=first.id.iteration,
            mean=self._codec.mean(total, scale, count).ravel()[: self._elements],
            k=first.k,
            count=first.count,
            members=wire.members_of(first.members),
            late=not all(result.has(self._rank) for result in results),
        )

    # -- on the event loop

    async def _exchange(self, packed: bytes) -> list[list[Result]]:
        """Send what is open, wait for the iteration, and fast-forward over what others have finished."""
        size = len(packed) // self._blocks
        for block in self.protocol.missing:
            values = packed[block * size : (block + 1) * size]
            scale, now = self._codec.scale, self._loop.time()
            self._follow(
                self.protocol.contribute(block, values, scale=scale, lanes=wire.Lanes.BITS_32, now=now), arm=False
            )
        self._arm()
        finished = [await self._finish()]
        while True:
            self._follow(self.protocol.begin(self.protocol.iteration + 1, self._loop.time()))
            if not self.protocol.left_behind:
                return finished
            finished.append(await self._finish())

    async def _finish(self) -> list[Result]:
        """Wait until the current iteration is complete; says what is missing when that takes long."""
        started = self._loop.time()
        while not self._complete.is_set():
            try:
                await asyncio.wait_for(self._complete.wait(), EXPLAIN_AFTER_S)
            except TimeoutError:
                waited = self._loop.time() - started
                missing = self.protocol.missing
                text = f"iteration {self.protocol.iteration}: no result for blocks {missing[:8]} for {waited:.0f} s"
                if waited >= GIVE_UP_AFTER_S:
                    raise AgentError(f"{text}; gave up") from None
                log.warning("%s; it is asked for again and again", text)
        if self._failure is not None:
            raise self._failure
        self._complete.clear()
        results = [self._delivered[block] for block in range(self._blocks)]
        self._delivered = {}
        return results

    def _take(self, datagrams: list[bytes]) -> None:
        """Datagrams have come."""
        now = self._loop.time()
        with self._failing():
            for datagram in datagrams:
                try:
                    header = self._packets.decode_header(datagram)
                except WireError as error:
                    log.warning("ignored: %s", error)
                    continue
                self._follow(self.protocol.packet_in(header, datagram[wire.HEADER_BYTES :], now), arm=False)
            self._arm()

    def _time_out(self) -> None:
        """The earliest deadline has passed."""
        self._timer = None
        with self._failing():
            self._follow(self.protocol.timer(self._loop.time()))

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What goes wrong in a callback is the training thread's to hear."""
        try:
            yield
        except HostError as error:
            self._failure = error
            self._complete.set()

    def _arm(self) -> None:
        """One timer, for the earliest deadline; a later one than needed never stays."""
        deadline = self.protocol.deadline
        if deadline is None or (self._timer is not None and self._timer.when() <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._time_out)

    def _follow(self, instructions: Iterable[Instruction], *, arm: bool = True) -> None:
        """Do what the protocol says."""
        for instruction in instructions:
            match instruction:
                case Send(header=header, values=values):
                    self._transport.send(self._packets.encode(header, values))
                case Deliver(result=result):
                    self._deliver(result)
                case Complete():
                    self._complete.set()
                case EncodeAgain(block=block, scale=scale, lanes=lanes):
                    self._encode_again(block, scale, lanes)
                case AskPeers():
                    self._ask_peers()
        if arm:
            self._arm()

    def _deliver(self, result: Result) -> None:
        """Enter what was counted of ours; the rest stays in the residual."""
        block = result.id.block
        self._delivered[block] = result
        if result.has(self._rank):
            self.residual.count(block, self._codec.counted(self._sent[block], int(self._sent_scale[block])))

    def _encode_again(self, block: int, scale: int, lanes: int) -> None:
        """The block's slot sums at another scale."""
        if lanes != wire.Lanes.BITS_32 or not 0 <= scale <= FRACTION_BITS:
            raise AgentError(
                f"block {block} is summed in lanes of code {lanes} at scale {scale}: code 0 (32 bits) and a scale of"
                f" 0 to {FRACTION_BITS} are allowed"
            )
        self._sent_scale[block] = scale
        self._sent[block] = self._codec.encode(self.residual.pending[block], scale)
        values = wire.pack_values(self._sent[block])
        self._follow(self.protocol.contribute(block, values, scale=scale, lanes=lanes, now=self._loop.time()))

    def _ask_peers(self) -> None:
        """Fetch the current iteration's results from the peers, unless that is under way."""
        if self._fetching is None or self._fetching.done():
            self._fetching = self._loop.create_task(self._fetch())

    async def _fetch(self) -> None:
        """Ask peers until the current iteration is complete; none of them may hold all of it."""
        iteration = self.protocol.iteration
        async for results in self._fetch_results(iteration):
            with self._failing():
                for result in results:
                    self._follow(self.protocol.result_in(result, self._loop.time()))
            if self.protocol.iteration != iteration or not self.protocol.missing:
                return


def _packet_codec(name: str) -> ModuleType:
    """The module that encodes and decodes packets: host.wire, or host.packets (Scapy) when asked for."""
    return wire if name == "fast" else importlib.import_module("host.packets")
