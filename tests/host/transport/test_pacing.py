"""Packets leave at the rate that is asked for, in order, none is lost; and what has not left is not sent again."""

import asyncio
import contextlib
import math
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn.host.protocol.block_layout import BlockLayout
from kofn.host.protocol.core import Protocol
from kofn.host.protocol.in_flight import InFlight
from kofn.host.protocol.instructions import Instruction, Packed, Send
from kofn.host.protocol.slot_model import SlotModel
from kofn.host.protocol.timeout import PATIENCE_MIN_S, RTO_MIN_S
from kofn.host.transport.datagrams import Packet
from kofn.host.transport.pacing import BURST_PACKETS, BURST_S, PAUSE_S, Pacer, TokenBucket, bucket_for
from kofn.host.transport.udp import Transport, udp_socket
from kofn.host.wire.packet import (
    FRAME_BYTES,
    HEADER_BYTES,
    PORT,
    WEIGHT_UNIT,
    WORD_BYTES,
    KofnHeader,
    decode_header,
    encode,
)
from kofn.sim.clock import Handle, VirtualClock

BURST = 4000
ARRIVES_S = 10.0


class LateClock(VirtualClock):
    """Every timer rings late."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self._late_s = late_s

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        return super().call_at(when + self._late_s, callback, *args)


def paced(
    packets: list[tuple[float, int]], *, mbps: float, late_s: float = 0.0
) -> tuple[list[tuple[float, int]], list[float]]:
    """(time, number) of the packets that have left, and when each was expected to; they come (gap, frame's size)."""
    clock, left, expected = LateClock(late_s), list[tuple[float, int]](), list[float]()
    bucket = TokenBucket(mbps=mbps, burst_bytes=BURST)
    pacer = Pacer[int](bucket, clock, lambda numbers: left.extend((clock.time(), number) for number in numbers))

    def send(number: int, size: int) -> None:
        (leaves_s,) = pacer.send([(number, size - FRAME_BYTES)])
        expected.append(clock.time() if leaves_s is None else leaves_s)

    now = 0.0
    for number, (gap_s, size) in enumerate(packets):
        now += gap_s
        clock.after(now, send, number, size)
    clock.run()
    return left, expected


def test_a_timer_that_is_late_loses_no_rate_up_to_so_long() -> None:
    """80 packets of 1 ms, of which four may leave at once."""
    for late_s, over_s in ((0.004, 0.0), (0.012, 0.0), (0.04, 1.2)):
        clock, left = LateClock(late_s), list[float]()
        bucket = TokenBucket(mbps=8.0, burst_bytes=4000, late_s=0.016)
        pacer = Pacer[int](bucket, clock, lambda numbers, to=left, now=clock.time: to.extend([now()] * len(numbers)))
        pacer.send([(number, 1000 - FRAME_BYTES) for number in range(80)])
        clock.run()
        assert left[-1] == pytest.approx(0.076 * (1 + over_s), abs=late_s + PAUSE_S + 0.001)
        for first, begin_s in enumerate(left):
            assert all(end_s >= begin_s + (at - 19) / 1000 - 1e-9 for at, end_s in enumerate(left[first:]))


PACKETS = st.lists(st.tuples(st.one_of(st.just(0.0), st.floats(0, 0.05)), st.integers(FRAME_BYTES, BURST)), max_size=40)


@given(packets=PACKETS, mbps=st.floats(0.1, 1000), late_s=st.sampled_from([0.0, 0.001, 0.1]))
def test_no_interval_has_more_than_rate_and_burst(packets: list[tuple[float, int]], mbps: float, late_s: float) -> None:
    left, _ = paced(packets, mbps=mbps, late_s=late_s)
    assert [number for _, number in left] == list(range(len(packets))), "in order, and each once"
    for first, (begin_s, _) in enumerate(left):
        total = 0
        for end_s, number in left[first:]:
            total += packets[number][1]
            assert total <= BURST + (end_s - begin_s) * mbps * 1e6 / 8 * (1 + 1e-9) + 1e-3


@given(packets=PACKETS, mbps=st.floats(0.1, 1000))
def test_packets_leave_when_they_were_expected_to_and_no_later_than_they_must(
    packets: list[tuple[float, int]], mbps: float
) -> None:
    left, expected = paced(packets, mbps=mbps)
    for (when, _), soonest in zip(left, expected, strict=True):
        assert soonest - 1e-9 <= when <= soonest + PAUSE_S + 1e-9
    whole, _ = paced([(0.0, size) for _, size in packets], mbps=mbps)
    total = sum(size for _, size in packets)
    if packets:
        assert whole[-1][0] == pytest.approx(max(0.0, (total - BURST) * 8e-6 / mbps))


def test_what_waits_at_the_end_is_thrown_away() -> None:
    clock, left = VirtualClock(), list[int]()
    pacer = Pacer[int](TokenBucket(mbps=1.0, burst_bytes=BURST), clock, left.extend)
    pacer.send([(number, BURST - FRAME_BYTES) for number in range(10)])
    clock.after(0.1, pacer.close)
    clock.run()
    assert left == [0, 1, 2, 3], "32 ms each"
    pacer.close()


def test_a_burst_is_a_few_packets_or_what_leaves_while_a_timer_is_late() -> None:
    packet = FRAME_BYTES + HEADER_BYTES + WORD_BYTES
    for mbps, burst in ((1.0, BURST_PACKETS * packet), (1000.0, 1000e6 / 8 * BURST_S)):
        bucket = bucket_for(mbps, 1)
        assert bucket is not None
        assert bucket.due_s(int(burst), 0.0) == 0
        assert bucket.due_s(int(burst) + packet, 0.0) > 0
    assert bucket_for(0.0, 1) is None


@pytest.mark.parametrize(("words", "most"), [(32, 45), (1, 45)])
def test_a_wake_up_lets_go_what_is_due_by_then(words: int, most: int) -> None:
    """10 Mbit at 100 Mbit/s: every 2 ms, and more than one packet each time."""
    size = FRAME_BYTES + HEADER_BYTES + words * WORD_BYTES
    clock, left, times = LateClock(0.001), list[int](), list[float]()
    bucket = bucket_for(100.0, words)
    assert bucket is not None
    pacer = Pacer[int](bucket, clock, left.extend, lambda: times.append(clock.time()))
    packets = 10_000_000 // (8 * size)
    pacer.send([(number, size - FRAME_BYTES) for number in range(packets)])
    clock.run()
    assert left == list(range(packets))
    assert len(times) <= most
    assert times[-1] <= 0.1 + 0.001, "timers that are late lose no rate"


class SocketClock(VirtualClock):
    """What a transport needs of an event loop, in virtual time: a socket is read when `read` is called, if at all."""

    read: Callable[[], object] | None = None
    arrived: Callable[[], object]

    def add_reader(self, watched: socket.socket, read: Callable[[], object]) -> None:
        self.read = read
        self.arrived = lambda: select.select([watched], [], [], ARRIVES_S)

    def remove_reader(self, _: socket.socket) -> None:
        self.read = None


@contextlib.contextmanager
def paced_worker(
    clock: SocketClock, mbps: float, take: Callable[[list[Packet]], None] = print
) -> Iterator[tuple[Transport, socket.socket]]:
    """A worker's transport, with packets of 32 words, and the socket of its switch."""
    with udp_socket("127.0.78.254", PORT) as switch:
        switch.settimeout(ARRIVES_S)
        transport = Transport("127.0.78.254", local="127.0.78.1", bucket=bucket_for(mbps, 32))
        transport.listen(cast(asyncio.AbstractEventLoop, clock), take, print)
        yield transport, switch
        transport.close()


def packets(count: int) -> list[Packet]:
    return [(KofnHeader(block=block, words=32), bytes(32 * WORD_BYTES)) for block in range(count)]


def answer(switch: socket.socket, blocks: Iterable[int]) -> None:
    for block in blocks:
        switch.sendto(encode(KofnHeader(kind=2, block=block), bytes(WORD_BYTES)), ("127.0.78.1", PORT))


@pytest.mark.parametrize("look", [False, True])
def test_what_comes_while_packets_wait_is_read_when_they_leave(look: bool) -> None:
    """Or when somebody asks for it."""
    clock, taken = SocketClock(), list[tuple[float, int]]()

    def take(came: list[Packet]) -> None:
        taken.extend((clock.time(), header.block) for header, _ in came)

    with paced_worker(clock, 100.0, take) as (transport, switch):
        leaves = transport.send(packets(30))
        assert any(leaves)
        assert clock.read is None
        answer(switch, range(5))
        clock.arrived()
        if look:
            transport.look()
        clock.run()
        assert clock.read is not None, "nothing waits any more"
        while len(taken) < 5:
            clock.arrived()
            clock.read()
    assert [block for _, block in taken] == list(range(5))
    when = taken[0][0]
    assert when == 0.0 if look else 0.0 < when <= 2 * PAUSE_S


def test_what_comes_is_not_kept_waiting_for_long() -> None:
    """At 1 Mbit/s a packet leaves every 66 ms."""
    clock, taken = SocketClock(), list[Packet]()
    with paced_worker(clock, 1.0, taken.extend) as (transport, switch):
        assert any(transport.send(packets(30)))
        assert clock.read is not None
        answer(switch, [7])
        clock.arrived()
        clock.read()
    assert [header.block for header, _ in taken] == [7]


def test_a_socket_that_is_closed_sends_nothing_that_waits() -> None:
    clock, got = SocketClock(), list[int]()
    with paced_worker(clock, 1.0) as (transport, switch):
        transport.send(packets(2 * BURST_PACKETS))
        transport.close()
        clock.run()
        while len(got) < BURST_PACKETS:
            got.append(decode_header(switch.recv(1 << 16)).block)
        switch.setblocking(False)
        with pytest.raises(BlockingIOError):
            switch.recv(1 << 16)
        assert got == list(range(BURST_PACKETS))
        assert transport.traffic.packets_sent == BURST_PACKETS
        assert transport.traffic.bytes_sent == BURST_PACKETS * (HEADER_BYTES + 32 * WORD_BYTES)


@dataclass
class Alone:
    """One worker's protocol behind a pacer, and its switch a millisecond away; `lose`: packets, counted from 1."""

    mbps: float
    blocks: int = 24
    lose: frozenset[int] = frozenset()
    clock: VirtualClock = field(default_factory=VirtualClock)
    left: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = BlockLayout(blocks=self.blocks, words=1, widest=32)
        self.protocol = Protocol(job=1, rank=0, layout=shape, slots=64, window=16, rto_s=0.05)
        self.switch = SlotModel(workers=1, k=1, slots=64)
        bucket = TokenBucket(mbps=self.mbps, burst_bytes=FRAME_BYTES + HEADER_BYTES + WORD_BYTES)
        self.pacer = Pacer[Send](bucket, self.clock, self.leave_all)

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
                    self.protocol.leaves(instruction.header, leaves_s)

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
        """The timer is looked at each millisecond."""
        self.follow(self.protocol.timer(self.clock.time()))
        if self.protocol.missing:
            self.clock.after(self.clock.time() + 0.001, self.tick)


@pytest.mark.parametrize("mbps", [0.025, 0.1, 1.0, 10.0])
def test_what_waits_for_its_turn_is_not_sent_again(mbps: float) -> None:
    """At the lowest rate a packet lasts 112 ms, more than twice the first timeout."""
    alone = Alone(mbps).run()
    assert not alone.protocol.missing
    assert alone.protocol.statistics.retransmissions == 0
    assert len(alone.left) == alone.blocks


@pytest.mark.parametrize("mbps", [0.025, 1.0, 10.0])
def test_what_was_lost_is_sent_again(mbps: float) -> None:
    lost = frozenset({1, 5, 6, 24})
    alone = Alone(mbps, lose=lost).run()
    assert not alone.protocol.missing
    assert len(alone.left) == alone.blocks + len(lost), "and nothing else is"
    gaps = [later - earlier for earlier, later in pairwise(alone.left)]
    assert min(gaps) >= (FRAME_BYTES + HEADER_BYTES + WORD_BYTES) * 8e-6 / mbps - 1e-9


def flights(*leaves_s: float) -> InFlight:
    """Blocks 0, 1, ... handed out at 0, each of which leaves then; their first timeout is 50 ms."""
    made = InFlight(0.05)
    for block, at in enumerate(leaves_s):
        made.launch(block, KofnHeader(block=block), b"", 0.0)
        if at:
            made.leaves(made.by_request[block], at)
    return made


def test_silence_counts_from_when_the_first_packet_leaves() -> None:
    assert flights(0.0, 0.5).deadline == pytest.approx(0.05)
    assert flights(0.04, 0.5).deadline == pytest.approx(0.04 + 0.05)


def test_silence_counts_from_the_next_packet_when_all_that_have_left_are_answered() -> None:
    made = flights(0.0, 0.5, 0.6)
    made.answered([0], 0.01)
    assert made.deadline == pytest.approx(0.5 + 0.05)


def test_only_what_has_left_is_repeated_in_silence() -> None:
    made = flights(0.0, 0.5, 0.6)
    for _ in range(2):
        assert made.deadline is not None
        assert made.deadline < 0.5
        assert made.due(made.deadline) == [0]


def test_what_has_not_left_is_not_overtaken() -> None:
    made = flights(0.4, 0.5)
    made.answered([1], 0.01)
    assert made.by_request[0].deadline == pytest.approx(0.4 + PATIENCE_MIN_S), "others have closed block 1"


def test_an_answer_to_what_has_not_left_teaches_nothing() -> None:
    made = flights(0.5)
    made.answered([0], 0.01)
    for block in (1, 2):
        made.launch(block, KofnHeader(block=block), b"", float(block))
    made.answered([1], 1.01)
    made.mark_sent_again(2, 2.05)
    made.answered([2], 2.051)
    assert made._patience.window_s == 2 * PATIENCE_MIN_S, "sooner than any answer can come: it was repeated in vain"


def test_answers_that_come_together_are_one_wait() -> None:
    """Eight every 10 ms: a pause of twice as much is silence, not one of a few milliseconds."""
    made = flights(*[0.0] * 64)
    for batch in range(6):
        now = 0.05 + batch / 100
        made.answered(range(8 * batch, 8 * batch + 8), now)
    assert made.deadline is not None
    assert made.deadline - now >= 0.02 - 1e-9


def moving(*gaps_s: float, more: int = 4) -> tuple[InFlight, float]:
    """Block after block was answered, with these pauses; so many are still to come. And when the last one was."""
    made, now = flights(*[0.0] * (1 + len(gaps_s) + more)), 0.001
    made.answered([0], now)
    for block, gap_s in enumerate(gaps_s, 1):
        now += gap_s
        made.answered([block], now)
        for other in made.by_request.values():
            other.deadline = math.inf  # nothing was overtaken
    return made, now


def repeat_in_silence(made: InFlight) -> float:
    """What a silence says is to be sent again, is; and when that was."""
    assert made.deadline is not None
    now = made.deadline
    for block in made.due(now):
        made.mark_sent_again(block, now)
    return now


def test_the_tail_is_asked_for_before_the_timeout() -> None:
    made, answered = moving(*[0.004, 0.012] * 20)
    first = repeat_in_silence(made)
    second = repeat_in_silence(made)
    third = repeat_in_silence(made)
    assert 0.012 < first - answered < 0.8 * (second - first)
    assert third - second == pytest.approx(2 * (second - first))


@pytest.mark.parametrize(("after_s", "learns"), [(0.0005, True), (0.002, False), (0.02, True)])
def test_what_comes_soon_after_it_was_asked_for_again_had_been_lost(after_s: float, learns: bool) -> None:
    """Others were waited for where it comes later; or before any answer can."""
    made, answered = moving(*[0.006] * 20)
    assert made.deadline is not None
    usual = made.deadline - answered
    again = repeat_in_silence(made)
    made.answered([21], again + after_s)
    assert (made.deadline - (again + after_s) > 1.05 * usual) == learns


def test_what_is_lost_again_is_not_waited_for_as_others_are() -> None:
    """The first answer took 100 ms, because k workers had to be there; a way there and back takes 1 ms."""
    made = flights(*[0.0] * 8)
    made.answered([0], 0.1)
    made.launch(8, KofnHeader(block=8), b"", 0.1)
    made.answered([8], 0.101)
    made.mark_sent_again(1, 0.102)
    made.launch(9, KofnHeader(block=9), b"", 0.103)
    made.answered([9], 0.104)
    assert made.by_request[1].deadline == pytest.approx(0.102 + RTO_MIN_S)
