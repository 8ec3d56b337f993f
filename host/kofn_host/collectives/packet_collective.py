"""Collectives by packets of a user's protocol: a program in the switch sums blocks, a Speaker is the worker's side.

This module knows no protocol.  A Speaker has no I/O, so tests can drive it without a network, in any order of events.
"""

import contextlib
import math
import select
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from kofn_common.config.job import JobSection
from kofn_common.config.schema import Config
from kofn_common.running_clock import RunningClock
from kofn_common.wire.packet import SERVICE, WORD_LANES
from kofn_host.collectives.call import Array
from kofn_host.collectives.communicator import Task
from kofn_host.collectives.lane_communicator import SUMS, LaneCommunicator
from kofn_host.collectives.peers import MEET_S, TIMEOUT_S, Stalled
from kofn_host.collectives.work import WorkOutcome
from kofn_host.errors import CollectiveError
from kofn_host.stopwatch import Stopwatch
from kofn_host.transport.event_loop import EventLoop
from kofn_host.transport.fault_injection import faults_of
from kofn_host.transport.transport import Transport

Blocks = npt.NDArray[np.uint8]
"""Blocks of L lanes of 32 bits as on the wire, most significant byte first: shape (B, 4 L)."""

_DATAGRAM_BYTES = 1 << 16
_BATCH = 64
_LOOK_S = 0.1
"""The longest wait between two looks at an interruption."""


class Speaker(ABC):
    """One worker's side of a protocol during one sum, without I/O: packets in, packets out, a clock.

    `blocks` are this worker's values.  `close` writes all workers' sums to `sums`, which has the same shape.  The call
    ends when no block is `left`.  The abstract methods get the time in seconds and return packets to send, in order.
    """

    deadline_s = math.inf
    """The time at which `expire` must be called if no packet comes before."""

    def __init__(self, blocks: Blocks) -> None:
        self.blocks, self.sums = blocks, np.zeros_like(blocks)
        self.left = len(blocks)
        self.retransmissions = 0

    @abstractmethod
    def begin(self, now_s: float) -> Iterable[bytes]:
        """Begin the sum; `blocks` has one block or more."""

    @abstractmethod
    def receive(self, packet: bytes, now_s: float) -> Iterable[bytes]:
        """Take a packet's payload; the packet may belong to an earlier call."""

    @abstractmethod
    def expire(self, now_s: float) -> Iterable[bytes]:
        """Handle a timeout: `deadline_s` has passed."""

    def close(self, block: int, total: bytes) -> None:
        """Store a block's sum; each block is closed once."""
        self.sums[block] = np.frombuffer(total, np.uint8)
        self.left -= 1


class PacketCollective(LaneCommunicator):
    """A Communicator whose sums a Speaker makes, over a UDP socket that is connected to the switch's service address.

    A derived class has `data_plane`, `port`, `words` and `speaker`.  `transports` returns the Transport to the switch
    for a UDP port.
    """

    faults = ("host", "switch")
    counts_packets = True
    words = 1
    """256-byte words of a block."""

    def __init__(
        self,
        rank: int,
        addresses: Sequence[str],
        *,
        job: JobSection,
        transports: Callable[[int], Transport],
        timeout_s: float = TIMEOUT_S,
        meet_s: float = MEET_S,
    ) -> None:
        self.job, self._loop = job, EventLoop()
        self._transports: list[Transport] = []
        self._bytes, self._counts = Counter[str](), Counter[str]()
        self._interrupted = False
        self._socket = self._opened(transports(self.port))
        super().__init__(rank, addresses, job=job.id, timeout_s=timeout_s, meet_s=meet_s)

    @classmethod
    def connect(cls, rank: int, addresses: Sequence[str], config: Config) -> Self:
        sending, receiving = faults_of(config, rank)

        def transport(port: int) -> Transport:
            segments = config.network.coalesced
            return Transport(SERVICE, sending=sending, receiving=receiving, port=port, switch_segments=segments)

        return cls(rank, addresses, job=config.job, transports=transport)

    @classmethod
    def busiest_bytes(cls, gradient_bytes: int, workers: int) -> float:
        return gradient_bytes

    @abstractmethod
    def speaker(self, blocks: Blocks) -> Speaker:
        """Return the speaker of the next sum.  All workers sum equally many blocks, in the same order of calls."""

    def _opened(self, transport: Transport) -> socket.socket:
        """Open a transport, which is closed with the communicator; return its socket."""

        async def opening() -> socket.socket:
            return transport.open(self._loop.running)

        self._transports.append(transport)
        return self._loop.run(opening())

    @property
    def _lanes(self) -> int:
        return self.words * WORD_LANES

    def _prepare(self, host: str) -> str:
        return f"blocks of {self.words} words in {self.job.slots} slots"

    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        """Check that all workers use the same blocks."""
        for rank, card in enumerate(cards):
            if card != cards[0]:
                raise CollectiveError(f"worker {rank} sums {card}, worker 0 {cards[0]}: all must be the same")

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        watch = task.watch
        watch.turn("encode")
        moved = self._lane_sum(task) if task.call.kind in SUMS else self._among_zeros(task)
        blocks = range(moved.blocks)
        if blocks:
            values = np.frombuffer(moved.encode(blocks).values, np.uint8).reshape(len(blocks), -1)
            speaker = self.speaker(values)
            self._converse(speaker, watch)
            watch.turn("decode")
            places = speaker.sums.ctypes.data + speaker.sums.shape[1] * np.arange(len(blocks))
            moved.decode(blocks, places.astype(np.uint64))
        return self._outcome(task)

    def _outcome(self, task: Task) -> WorkOutcome[Array]:
        """Return a call's outcome, with the counts since the last call."""
        size, counts = self._bytes, self._counts
        self._bytes, self._counts = Counter[str](), Counter[str]()
        return WorkOutcome(
            value=task.out,
            count=self.workers,
            times=task.watch.times(),
            sent_bytes=size["sent"],
            received_bytes=size["received"],
            counts=counts,
        )

    def _converse(self, speaker: Speaker, watch: Stopwatch) -> None:
        """Carry packets between speaker and socket until no block is left; Stalled if no block closes in time."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        clock = RunningClock(self._timeout_s / 4)
        now, moved_s = time.monotonic(), clock()
        self._send(speaker.begin(now), watch)
        while left := speaker.left:
            if self._interrupted:
                raise CollectiveError(f"worker {self.rank} was interrupted")
            watch.turn("wait")
            poll.poll(1000 * max(0.0, min(_LOOK_S, speaker.deadline_s - now)))
            watch.turn("receive")
            for packet in self._received():
                self._send(speaker.receive(packet, time.monotonic()), watch)
            now = time.monotonic()
            if now >= speaker.deadline_s:
                self._send(speaker.expire(now), watch)
            if speaker.left < left:
                moved_s = clock()
            elif clock() - moved_s >= self._timeout_s:
                raise Stalled(f"no block was summed for {self._timeout_s:g} s; {speaker.left} are left")
        self._counts["retransmissions"] += speaker.retransmissions

    def _received(self) -> Iterable[bytes]:
        """Yield waiting datagrams, at most a batch."""
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            for _ in range(_BATCH):
                packet = self._socket.recv(_DATAGRAM_BYTES)
                self._count("received", packet)
                yield packet

    def _send(self, packets: Iterable[bytes], watch: Stopwatch) -> None:
        with watch.during("send"):
            for packet in packets:
                with contextlib.suppress(OSError):  # a datagram that the kernel refuses is lost, as on any network
                    self._socket.send(packet)
                self._count("sent", packet)

    def _count(self, way: str, packet: bytes) -> None:
        self._counts[f"packets_{way}"] += 1
        self._bytes[way] += len(packet)

    def _interrupt(self) -> None:
        self._interrupted = True

    def _release(self) -> None:
        async def closing() -> None:
            for transport in self._transports:
                transport.close()

        self._loop.run(closing())
        self._loop.close()
