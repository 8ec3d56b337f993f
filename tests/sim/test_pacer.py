"""Packets leave at the requested rate and in order; none is lost, and a packet that has not left is
not retransmitted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn.sim.clock import Handle, VirtualClock
from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES, KofnHeader
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.engine.pacing_rate import BURST_PACKETS, BURST_S, PacingRate, pacing_rate
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Instruction, Packed, Send
from tests.host.engine.pacer import Pacer
from tests.host.protocol.specification.both import Both as Protocol
from tests.host.protocol.specification.slot_model import SlotModel

PAUSE_S = 4e-3
"""Equals PAUSE_S in pacer.h."""

BURST = 4000


class LateClock(VirtualClock):
    """A clock whose timers all ring late; `timers`: how many there were."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self._late_s, self.timers = late_s, 0

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        self.timers += 1
        return super().call_at(when + self._late_s, callback, *args)


def paced(
    packets: list[tuple[float, int]], *, mbps: float, late_s: float = 0.0
) -> tuple[list[tuple[float, int]], list[float]]:
    """Return (time, number) of the packets that left, and their expected times; `packets`: (gap, frame size)."""
    clock, left, expected = LateClock(late_s), list[tuple[float, int]](), list[float]()
    pace = PacingRate(mbps=mbps, burst_bytes=BURST, late_s=0.0)
    pacer = Pacer[int](pace, clock, lambda numbers: left.extend((clock.time(), number) for number in numbers))

    def send(number: int, size: int) -> None:
        (leaves_s,) = pacer.send([(number, size - FRAME_BYTES)])
        expected.append(clock.time() if leaves_s is None else leaves_s)

    now = 0.0
    for number, (gap_s, size) in enumerate(packets):
        now += gap_s
        clock.after(now, send, number, size)
    clock.run()
    return left, expected


def test_late_timer_loses_no_rate_up_to_a_limit() -> None:
    """80 packets take 1 ms each; four of them may leave at once."""
    for late_s, over_s in ((0.004, 0.0), (0.012, 0.0), (0.04, 1.2)):
        clock, left = LateClock(late_s), list[float]()
        pace = PacingRate(mbps=8.0, burst_bytes=4000, late_s=0.016)
        pacer = Pacer[int](pace, clock, lambda numbers, to=left, now=clock.time: to.extend([now()] * len(numbers)))
        pacer.send([(number, 1000 - FRAME_BYTES) for number in range(80)])
        clock.run()
        assert left[-1] == pytest.approx(0.076 * (1 + over_s), abs=late_s + PAUSE_S + 0.001)
        for first, begin_s in enumerate(left):
            assert all(end_s >= begin_s + (at - 19) / 1000 - 1e-9 for at, end_s in enumerate(left[first:]))


PACKETS = st.lists(st.tuples(st.one_of(st.just(0.0), st.floats(0, 0.05)), st.integers(FRAME_BYTES, BURST)), max_size=40)


@given(packets=PACKETS, mbps=st.floats(0.1, 1000), late_s=st.sampled_from([0.0, 0.001, 0.1]))
def test_no_interval_has_more_than_rate_and_burst(packets: list[tuple[float, int]], mbps: float, late_s: float) -> None:
    left, _ = paced(packets, mbps=mbps, late_s=late_s)
    assert [number for _, number in left] == list(range(len(packets))), "packets must leave in order, each once"
    for first, (begin_s, _) in enumerate(left):
        total = 0
        for end_s, number in left[first:]:
            total += packets[number][1]
            assert total <= BURST + (end_s - begin_s) * mbps * 1e6 / 8 * (1 + 1e-9) + 1e-3


@given(packets=PACKETS, mbps=st.floats(0.1, 1000))
def test_packets_leave_when_expected_and_no_later_than_they_must(packets: list[tuple[float, int]], mbps: float) -> None:
    left, expected = paced(packets, mbps=mbps)
    for (when, _), soonest in zip(left, expected, strict=True):
        assert soonest - 1e-9 <= when <= soonest + PAUSE_S + 1e-9
    whole, _ = paced([(0.0, size) for _, size in packets], mbps=mbps)
    total = sum(size for _, size in packets)
    if packets:
        assert whole[-1][0] == pytest.approx(max(0.0, (total - BURST) * 8e-6 / mbps))


def test_heaviest_packet_leaves_first_and_equal_ones_in_order() -> None:
    """Each packet takes 1 ms; the first four leave at once."""
    clock, left = VirtualClock(), list[int]()
    pacer = Pacer[int](PacingRate(mbps=8.0, burst_bytes=4000, late_s=0.0), clock, left.extend)
    expected = [
        leaves_s
        for weight, numbers in ((1, range(8)), (3, (8, 9)), (2, (10,)), (3, (11,)))
        for leaves_s in pacer.send([(number, 1000 - FRAME_BYTES) for number in numbers], weight)
    ]
    clock.run()
    assert left == [0, 1, 2, 3, 8, 9, 11, 10, 4, 5, 6, 7]
    assert expected[:4] == [None] * 4
    assert expected[4:] == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.001, 0.002, 0.003, 0.003])


def test_packets_that_wait_at_the_end_are_discarded() -> None:
    clock, left = VirtualClock(), list[int]()
    pacer = Pacer[int](PacingRate(mbps=1.0, burst_bytes=BURST), clock, left.extend)
    pacer.send([(number, BURST - FRAME_BYTES) for number in range(10)])
    clock.after(0.1, pacer.close)
    clock.run()
    assert left == [0, 1, 2, 3], "each packet takes 32 ms"
    pacer.close()


def test_burst_is_a_few_packets_or_the_rate_over_a_late_timer() -> None:
    packet = FRAME_BYTES + HEADER_BYTES + WORD_BYTES
    for mbps, burst in ((1.0, BURST_PACKETS * packet), (1000.0, 1000e6 / 8 * BURST_S)):
        pace = pacing_rate(mbps, 1)
        assert pace is not None
        for more, waits in ((0, False), (packet, True)):
            pacer = Pacer[int](pace, VirtualClock(), print)
            (leaves_s,) = pacer.send([(0, int(burst) + more - FRAME_BYTES)])
            assert (leaves_s is not None) == waits
    assert pacing_rate(0.0, 1) is None


def test_packets_before_an_urgent_one_take_two_milliseconds_or_are_one() -> None:
    for mbps, words, packets in ((50.0, 8, 5), (200.0, 8, 23), (1.0, 32, 1)):
        pace = pacing_rate(mbps, words)
        assert pace is not None
        assert pace.credit_packets(words) == packets


@pytest.mark.parametrize(("words", "most"), [(32, 45), (1, 45)])
def test_wake_up_releases_all_packets_due_by_then(words: int, most: int) -> None:
    """10 Mbit at 100 Mbit/s: every 2 ms more than one packet leaves."""
    size = FRAME_BYTES + HEADER_BYTES + words * WORD_BYTES
    clock, left = LateClock(0.001), list[int]()
    pace = pacing_rate(100.0, words)
    assert pace is not None
    pacer = Pacer[int](pace, clock, left.extend)
    packets = 10_000_000 // (8 * size)
    pacer.send([(number, size - FRAME_BYTES) for number in range(packets)])
    clock.run()
    assert left == list(range(packets))
    assert clock.timers <= most
    assert clock.time() <= 0.1 + 0.001, "late timers must not reduce the rate"


@dataclass
class Alone:
    """One worker's protocol behind a pacer, and its switch a millisecond away; `lose`: numbers of
    lost packets, from 1.
    """

    mbps: float
    blocks: int = 24
    lose: frozenset[int] = frozenset()
    clock: VirtualClock = field(default_factory=VirtualClock)
    left: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = BlockLayout(blocks=self.blocks, words=1, widest=32)
        self.protocol = Protocol(job=1, rank=0, layout=shape, slots=64, window=16, rto_s=0.05)
        self.switch = SlotModel(workers=1, k=1, slots=64)
        pace = PacingRate(mbps=self.mbps, burst_bytes=FRAME_BYTES + HEADER_BYTES + WORD_BYTES, late_s=0.0)
        self.pacer = Pacer[Send](pace, self.clock, self.leave_all)

    def run(self) -> "Alone":
        self.follow(self.protocol.begin(1, 0.0))
        for block in range(self.blocks):
            packed = Packed(bytes(WORD_BYTES), 1, 0, WEIGHT_UNIT)
            self.follow(self.protocol.contribute(block, packed, now=0.0))
        self.tick()
        self.clock.run()
        return self

    def follow(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, Send):
                (leaves_s,) = self.pacer.send([(instruction, HEADER_BYTES + WORD_BYTES)])
                if leaves_s is not None:
                    self.protocol.leaves(instruction, leaves_s)

    def leave_all(self, packets: list[Send]) -> None:
        for packet in packets:
            self.leave(packet)

    def leave(self, packet: Send) -> None:
        self.left.append(self.clock.time())
        if len(self.left) not in self.lose:
            for _, answer, values in self.switch.handle(packet.header, packet.values):
                self.clock.after(self.clock.time() + 0.001, self.take, answer, values)

    def take(self, header: KofnHeader, values: bytes) -> None:
        self.follow(self.protocol.packet_in(header, values, self.clock.time()))

    def tick(self) -> None:
        """Call the timer each millisecond."""
        self.follow(self.protocol.timer(self.clock.time()))
        if self.protocol.missing:
            self.clock.after(self.clock.time() + 0.001, self.tick)


@pytest.mark.parametrize("mbps", [0.025, 0.1, 1.0, 10.0])
def test_packet_that_waits_for_its_turn_is_not_retransmitted(mbps: float) -> None:
    """At the lowest rate a packet takes 112 ms, more than twice the first timeout."""
    alone = Alone(mbps).run()
    assert not alone.protocol.missing
    assert alone.protocol.statistics.retransmissions == 0
    assert len(alone.left) == alone.blocks


@pytest.mark.parametrize("mbps", [0.025, 1.0, 10.0])
def test_lost_packets_are_retransmitted(mbps: float) -> None:
    lost = frozenset({1, 5, 6, 24})
    alone = Alone(mbps, lose=lost).run()
    assert not alone.protocol.missing
    assert len(alone.left) == alone.blocks + len(lost), "only lost packets may be retransmitted"
    gaps = [later - earlier for earlier, later in pairwise(alone.left)]
    assert min(gaps) >= (FRAME_BYTES + HEADER_BYTES + WORD_BYTES) * 8e-6 / mbps - 1e-9
