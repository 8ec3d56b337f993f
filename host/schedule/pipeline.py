"""What a schedule comes to: one worker's computation and one link, iteration after iteration, in virtual time.

The computation is a sequence: forward passes, each of which waits for the means that it needs, then the steps of the
backward pass. A piece is handed to the link once its last weight gradient is there. The link carries one chunk after
another, always one of the highest level that is there; a chunk that has begun is not overtaken, which is what blocks
in flight amount to. The mean of a piece is there `latency_s` after its last chunk.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from kofn.host.protocol.block_layout import BlockLayout
from kofn.host.schedule.families import PassSchedule
from kofn.host.schedule.layers import Layer, LayerTimes
from kofn.host.schedule.partition import Piece, partition
from kofn.host.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES

UNSHAPED_MBPS = 1000.0
"""What a link that is not shaped is taken to carry."""

ITERATIONS = 8
"""After so many the pipeline is filled, and one takes as long as the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """What all gradients go through: elements a second, seconds until a mean is there, seconds of processor time that
    handing over a piece takes, and elements in flight, which nothing overtakes.
    """

    rate: float
    latency_s: float = 0.0
    piece_s: float = 0.0
    credit: int = 1

    @classmethod
    def of(cls, mbps: float, layout: BlockLayout, window: int) -> Self:
        """A link of `mbps`, 0: one that is not shaped, with `window` blocks in flight."""
        frame_bits = 8 * (layout.words * WORD_BYTES + HEADER_BYTES + FRAME_BYTES)
        blocks = (mbps or UNSHAPED_MBPS) * 1e6 / frame_bits
        return cls(rate=blocks * layout.elements, credit=window * layout.elements)

    def transfer_s(self, elements: int) -> float:
        return elements / self.rate


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """What one layer's "forward", "error" or "weight" takes, or one piece's "transfer"; seconds since the iteration's
    first forward pass could have begun.
    """

    what: str
    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class IterationTimeline:
    """One iteration of a filled pipeline; its transfers may end in the next one."""

    iteration_s: float
    computation: Sequence[TimeSpan]
    transfers: Sequence[TimeSpan]

    @property
    def waited_s(self) -> float:
        """For means."""
        return self.iteration_s - sum(one.end_s - one.begin_s for one in self.computation)


def timeline(
    layers: Sequence[Layer], times: LayerTimes, schedule: PassSchedule, network: LinkModel
) -> IterationTimeline:
    """Of an iteration once the pipeline is filled."""
    pipeline = _Pipeline(layers, times, schedule, network)
    ends = [0.0]
    for _ in range(ITERATIONS):
        computation, transfers = pipeline.iteration()
        ends.append(computation[-1].end_s)
    iteration_s, begin = ends[-1] - ends[-2], ends[-2]
    return IterationTimeline(iteration_s, [*_since(computation, begin)], [*_since(transfers, begin)])


def bound_s(layers: Sequence[Layer], times: LayerTimes, network: LinkModel) -> float:
    """No schedule is faster: the computation, the transfer, and each layer's way from its forward pass to the next one.

    That way leads through the forward passes of the layers behind it, their error terms and its weight gradient.
    """
    transfer = [network.transfer_s(layer.elements) for layer in layers]
    ways = [
        sum(times.forward[at:]) + sum(times.error[at + 1 :]) + times.weight[at] + transfer[at] + network.latency_s
        for at in range(len(layers))
    ]
    return max(times.compute_s, sum(transfer), *ways)


class _Pipeline:
    def __init__(self, layers: Sequence[Layer], times: LayerTimes, schedule: PassSchedule, network: LinkModel) -> None:
        self._times, self._family, self._network = times, schedule.family, network
        self._layers = range(len(layers))
        self._order = schedule.order(len(layers))
        self._pieces = partition(layers, schedule)
        self._now = 0.0
        self._free_s = 0.0  # when the link is
        self._there = [0.0] * len(layers)  # when each layer's mean is

    def iteration(self) -> tuple[list[TimeSpan], list[TimeSpan]]:
        computation, computed = [], dict[int, float]()
        for layer in self._layers:
            self._now = max(self._now, self._there[layer] if self._family.by_layer else max(self._there))
            computation.append(self._spend("forward", layer, self._times.forward[layer]))
        handed = list[tuple[float, Piece]]()
        waiting = list(self._pieces)
        for step in self._order:
            computation.append(self._spend(step.kind, step.layer, getattr(self._times, step.kind)[step.layer]))
            if step.kind == "weight":
                computed[step.layer] = self._now
                while waiting and all(layer in computed for layer in waiting[0].layers):
                    self._now += self._network.piece_s
                    handed.append((self._now, waiting.pop(0)))
        if not self._family.overlaps:
            handed = [(self._now, piece) for _, piece in handed]
        return computation, self._transfer(handed)

    def _spend(self, what: str, layer: int, seconds: float) -> TimeSpan:
        begin_s, self._now = self._now, self._now + seconds
        return TimeSpan(what, layer, begin_s, self._now)

    def _transfer(self, handed: Sequence[tuple[float, Piece]]) -> list[TimeSpan]:
        """The link's part, by the time that each piece was handed over; ascending."""
        self._there = [0.0] * len(self._layers)
        transfers, ready = [], list[tuple[int, int, int]]()  # -level, piece, elements that are left
        at, begun = 0, dict[int, float]()
        while at < len(handed) or ready:
            if not ready:
                self._free_s = max(self._free_s, handed[at][0])
            while at < len(handed) and handed[at][0] <= self._free_s:
                heapq.heappush(ready, (-handed[at][1].level, at, handed[at][1].elements))
                at += 1
            level, number, left = heapq.heappop(ready)
            begun.setdefault(number, self._free_s)
            chunk = min(left, self._network.credit)
            self._free_s += self._network.transfer_s(chunk)
            if left > chunk:
                heapq.heappush(ready, (level, number, left - chunk))
                continue
            transfers.append(TimeSpan("transfer", number, begun[number], self._free_s))
            for layer in handed[number][1].layers:
                self._there[layer] = max(self._there[layer], self._free_s + self._network.latency_s)
        return transfers


def _since(intervals: Sequence[TimeSpan], begin: float) -> Iterator[TimeSpan]:
    for one in intervals:
        yield TimeSpan(one.what, one.number, one.begin_s - begin, one.end_s - begin)
