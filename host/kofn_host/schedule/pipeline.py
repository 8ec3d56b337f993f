"""Predicts a schedule's iteration time: one worker's computation and one link, in virtual time.

The computation is a sequence: forward passes, which wait for the means that they need, then the steps of the backward
pass. A piece is handed to the link once its last weight gradient is computed. The link carries one chunk after another,
always a chunk of the highest waiting level. No chunk overtakes a chunk that has begun, just as no block overtakes
blocks in flight. The mean of a piece is complete `latency_s` after the piece's last chunk.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kofn_host.engine.pacing_rate import pacing_rate, packet_bytes
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.schedule.families import PassSchedule
from kofn_host.schedule.layers import Layer, LayerTimes
from kofn_host.schedule.pieces import Piece, partition

LATENCY_S = 4e-3
"""Seconds from the last packet's departure until the training thread has the mean: the round trip, the transfer of the
last result, and the wake-up of two threads (host/kofn_host/engine/engine.c, host/kofn_host/agent/agent.py)."""

UNSHAPED_MBPS = 1000.0
"""The assumed rate of an unshaped link."""

ITERATIONS = 8
"""The number of iterations after which the pipeline is filled and iteration times are constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """A model of the link that carries all gradients.

    `rate`: elements per second; `latency_s`: seconds until a mean is complete; `credit`: the elements in flight, which
    cannot be overtaken.
    """

    rate: float
    latency_s: float = 0.0
    credit: int = 1

    @classmethod
    def of(cls, mbps: float, layout: BlockLayout, window: int) -> Self:
        """Return a link of `mbps` (0: unshaped) with at most `window` blocks in flight."""
        mbps = mbps or UNSHAPED_MBPS
        pace, blocks = pacing_rate(mbps, layout.words), mbps * 1e6 / (8 * packet_bytes(layout.words))
        assert pace is not None
        credit = min(window, pace.credit_packets(layout.words)) * layout.elements
        return cls(rate=blocks * layout.elements, latency_s=LATENCY_S, credit=credit)

    def transfer_s(self, elements: int) -> float:
        return elements / self.rate

    def as_slow(self, layers: Sequence[Layer]) -> LayerTimes:
        """Return times of passes that together take as long as all transfers, in proportion to layers' elements."""
        times = [self.transfer_s(layer.elements) / 3 for layer in layers]
        return LayerTimes(times, times, times)


def iteration_s(layers: Sequence[Layer], times: LayerTimes, schedule: PassSchedule, network: LinkModel) -> float:
    """Return the seconds of an iteration once the pipeline is filled."""
    pipeline = _Pipeline(layers, times, schedule, network)
    *_, before_s, end_s = (pipeline.iteration() for _ in range(ITERATIONS))
    return end_s - before_s


def bound_s(layers: Sequence[Layer], times: LayerTimes, network: LinkModel) -> float:
    """Return a lower bound of the iteration time of all schedules.

    The bound is the larger of two times: the computation, and the longest path from a layer's forward pass to the
    layer's next forward pass. This path has the forward passes of the layer and of the later layers, the later layers'
    error terms, and the layer's weight gradient and transfer. A second path bounds the time as well: before the layer's
    next forward pass, the link must transfer this layer and all earlier layers, and it cannot begin before the first
    weight gradient of these layers is computed.
    """
    transfer = [network.transfer_s(layer.elements) for layer in layers]
    ways = list[float]()
    for at in range(len(layers)):
        passes_s = sum(times.forward[at:]) + sum(times.error[at + 1 :])
        first_s = min(sum(times.error[layer + 1 : at + 1]) + times.weight[layer] for layer in range(at + 1))
        ways += [passes_s + times.weight[at] + transfer[at], passes_s + first_s + sum(transfer[: at + 1])]
    return max(times.compute_s, max(ways) + network.latency_s)


def leaving_order(
    layers: Sequence[Layer], times: LayerTimes, schedule: PassSchedule, network: LinkModel, block_elements: int
) -> list[int]:
    """Return the layer of each block in the order in which blocks leave; a layer's blocks are in ascending order.

    Each layer begins a new block, and a block leaves with the last piece that overlaps the block.
    """
    coming = list[tuple[float, int, int]]()  # the time of handing over, -level, layer
    for handed_s, piece in _Pipeline(layers, times, schedule, network).backward():
        for at, (begin, end) in zip(piece.layers, piece.ranges, strict=True):
            layer = layers[at]
            whole = layer.elements if end == layer.end else (end - layer.begin) // block_elements * block_elements
            first = (begin - layer.begin) // block_elements
            coming += [(handed_s, -piece.level, at)] * (-(-whole // block_elements) - first)
    order, ready, now = list[int](), list[tuple[int, float, int]](), 0.0
    while coming or ready:
        now = max(now, coming[0][0]) if not ready else now
        while coming and coming[0][0] <= now:
            handed_s, level, at = coming.pop(0)
            heapq.heappush(ready, (level, handed_s, at))
        order.append(heapq.heappop(ready)[2])
        now += network.transfer_s(block_elements)
    return order


class _Pipeline:
    def __init__(self, layers: Sequence[Layer], times: LayerTimes, schedule: PassSchedule, network: LinkModel) -> None:
        self._times, self._family, self._network = times, schedule.family, network
        self._order = schedule.order(len(layers))
        self._pieces = partition(layers, schedule)
        self._now = 0.0
        self._free_s = 0.0  # when the link is free
        self._complete_s = [0.0] * len(layers)  # when each layer's mean is complete

    def iteration(self) -> float:
        """Run the next iteration; return the end of its computation."""
        for layer, forward_s in enumerate(self._times.forward):
            mean_s = self._complete_s[layer] if self._family.by_layer else max(self._complete_s)
            self._now = max(self._now, mean_s) + forward_s
        self._transfer(self.backward())
        return self._now

    def backward(self) -> list[tuple[float, Piece]]:
        """Return the pieces of a backward pass with the times of their handing over, ascending."""
        handed, waiting, computed = list[tuple[float, Piece]](), list(self._pieces), set[int]()
        for step in self._order:
            self._now += getattr(self._times, step.kind)[step.layer]
            if step.kind == "weight":
                computed.add(step.layer)
                while waiting and computed.issuperset(waiting[0].layers):
                    handed.append((self._now, waiting.pop(0)))
        return handed if self._family.overlaps else [(self._now, piece) for _, piece in handed]

    def _transfer(self, handed: Sequence[tuple[float, Piece]]) -> None:
        """Transfer pieces, given with the times of their handing over, ascending."""
        self._complete_s = [0.0] * len(self._complete_s)
        ready = list[tuple[int, int, int]]()  # -level, piece, remaining elements
        at = 0
        while at < len(handed) or ready:
            if not ready:
                self._free_s = max(self._free_s, handed[at][0])
            while at < len(handed) and handed[at][0] <= self._free_s:
                heapq.heappush(ready, (-handed[at][1].level, at, handed[at][1].elements))
                at += 1
            level, number, left = heapq.heappop(ready)
            chunk = min(left, self._network.credit)
            self._free_s += self._network.transfer_s(chunk)
            if left > chunk:
                heapq.heappush(ready, (level, number, left - chunk))
                continue
            for layer in handed[number][1].layers:
                self._complete_s[layer] = max(self._complete_s[layer], self._free_s + self._network.latency_s)
