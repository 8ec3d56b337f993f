"""Workers' cores, links of limited rate and the slot model, in virtual time: retransmissions, and when all results are
there.

A worker may be away for a while, as if descheduled. Packets that arrive meanwhile are read afterwards, before its
timers.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from random import Random

from kofn_common.wire.packet import HEADER_BYTES, WORD_BYTES, KofnHeader
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Instruction, Packed, Send
from tests.host.protocol.specification.both import Both
from tests.host.protocol.specification.slot_model import SlotModel

LATENCY_S = 0.0001
VALUES = Packed(bytes(WORD_BYTES), 0, 0, 1)

Interval = tuple[float, float]


class TimedJob:
    """One iteration of `blocks` blocks over links of this rate; `away`: the times when a worker does nothing, by rank.

    `owned`: the workers own the blocks in turn; else the blocks are sums. `loss`: probability of losing a packet.
    """

    def __init__(
        self,
        *,
        workers: int = 4,
        blocks: int = 400,
        mbps: float = 24.0,
        owned: bool = False,
        away: Mapping[int, Sequence[Interval]] | None = None,
        loss: float = 0.0,
        seed: int = 0,
        window: int = 64,
    ) -> None:
        layout = BlockLayout(blocks=blocks, words=1, widest=32)
        options = {"layout": layout, "slots": 256, "window": window, "rto_s": 0.05, "keep": 1}
        self.workers = [Both(job=1, rank=rank, **options) for rank in range(workers)]
        self.lost, self.now = 0, 0.0
        self._switch = SlotModel(workers=workers, k=workers, slots=256)
        self._byte_s, self._away, self._owned = 8e-6 / mbps, away or {}, owned
        self._loss, self._chance = loss, Random(seed)
        self._up, self._down = [0.0] * workers, [0.0] * workers
        self._inbox: list[list[tuple[KofnHeader, bytes]]] = [[] for _ in range(workers)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._iteration, self._first, self._blocks = 0, 0, blocks

    @property
    def again(self) -> int:
        """Packets sent beyond the necessary ones."""
        return sum(one.statistics.retransmissions + one.statistics.pulls for one in self.workers)

    def run(self, iterations: int = 1) -> float:
        """Run `iterations` iterations one after another and return how long they took."""
        began = self.now
        for _ in range(iterations):
            self._iteration += 1
            for rank in range(len(self.workers)):
                self._at(self.now, lambda rank=rank: self._begin(rank))
            while any(one.iteration < self._iteration or one.missing for one in self.workers):
                self.now, _, happen = heapq.heappop(self._events)
                happen()
            self._first += self._blocks
        return self.now - began

    # -- a worker

    def _begin(self, rank: int) -> None:
        protocol, blocks = self.workers[rank], range(self._blocks)
        self._follow(rank, protocol.begin(self._iteration, self.now, blocks, first=self._first))
        mine = [*blocks]
        if self._owned:
            owners = [block % len(self.workers) for block in blocks]
            self._follow(rank, protocol.owned(owners, len(self.workers), self.now))
            mine = mine[rank :: len(self.workers)]
        self._follow(rank, protocol.contribute_all([(block, VALUES) for block in mine], now=self.now))
        self._wake(rank)

    def _wake(self, rank: int) -> None:
        """Read the packets that arrived, then call the timers, unless the worker is away."""
        back = max((end for begin, end in self._away.get(rank, ()) if begin <= self.now < end), default=None)
        if back is not None:
            self._at(back, lambda: self._wake(rank))
            return
        protocol = self.workers[rank]
        if come := self._inbox[rank]:
            self._inbox[rank] = []
            self._follow(rank, protocol.packets_in(come, self.now))
        if (protocol.deadline or math.inf) <= self.now:
            self._follow(rank, protocol.timer(self.now))
        if (due := protocol.deadline) is not None:
            self._at(max(due, self.now + 1e-6), lambda: self._ring(rank, due))

    def _ring(self, rank: int, due: float) -> None:
        if self.workers[rank].deadline == due:
            self._wake(rank)

    def _follow(self, rank: int, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            if isinstance(one, Send):
                self._send(rank, one)

    # -- the network

    def _send(self, rank: int, sent: Send) -> None:
        leaves = max(self.now, self._up[rank])
        self._up[rank] = leaves + self._bytes(sent.values) * self._byte_s
        if leaves > self.now:
            self.workers[rank].leaves(sent, leaves)
        if not self._is_lost():
            self._at(self._up[rank] + LATENCY_S, lambda: self._arrive(sent.header, sent.values))

    def _arrive(self, header: KofnHeader, values: bytes) -> None:
        """Hand a packet to the switch."""
        for rank, answer, sums in self._switch.handle(header, values):
            self._down[rank] = max(self.now, self._down[rank]) + self._bytes(sums) * self._byte_s
            if not self._is_lost():
                come = answer, bytes(sums)
                self._at(self._down[rank] + LATENCY_S, lambda rank=rank, come=come: self._come(rank, come))

    def _come(self, rank: int, packet: tuple[KofnHeader, bytes]) -> None:
        self._inbox[rank].append(packet)
        self._wake(rank)

    def _is_lost(self) -> bool:
        lost = self._loss > 0 and self._chance.random() < self._loss
        self.lost += lost
        return lost

    @staticmethod
    def _bytes(values: bytes) -> int:
        return HEADER_BYTES + len(values)

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), happen))
