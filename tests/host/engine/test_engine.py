"""The thread that moves packets, over loopback; the test or the slot model plays the switch."""

import ctypes
import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_common.nativebuild.library import compile_texts, load_library
from kofn_common.wire.packet import (
    EVERYONE,
    FRAME_BYTES,
    HEADER_BYTES,
    PACKET_BYTES_MAX,
    VERSION,
    WORD_BYTES,
    Kind,
    KofnHeader,
    Lanes,
    decode_header,
    encode,
)
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.engine.engine import Traffic, WorkerEngine
from kofn_host.engine.pacing_rate import BURST_PACKETS, PacingRate, pacing_rate
from kofn_host.errors import ProtocolError
from kofn_host.native import FOLDERS
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Complete, Deliver, Instruction, Packed, PackedBlocks
from kofn_host.protocol.results import Result
from kofn_host.transport.udp import may_join, socket_pair
from tests.host.protocol.specification.slot_model import SlotModel
from tests.host.protocol.watched import WatchedBeside
from tests.waiting import until

HERE = Path(__file__).parent
SOON_S = 20.0
"""Limit of every wait."""

UDP_SEGMENT = 103
"""From linux/udp.h; Python has no name for it."""

AT_ONCE = 64
"""The packets that engine.c receives in one call."""

SO_TIMESTAMPNS = 35
"""From asm-generic/socket.h; Python has no name for it."""

ZEROS = bytes(WORD_BYTES)

FRAME = FRAME_BYTES + HEADER_BYTES + WORD_BYTES
BURST = BURST_PACKETS * FRAME


class Bench:
    """A worker's engine, and the other end of its socket."""

    def __init__(
        self, *, pace: PacingRate | None = None, batch: int = 1, blocks: int = 16, votes: bool = False, **given: Any
    ) -> None:
        layout = BlockLayout(blocks=blocks, words=1, widest=1 if votes else 32, planes=3)
        options = {"rank": 0, "slots": 64, "window": 32, "rto_s": SOON_S} | given
        self.protocol = WatchedBeside(job=1, layout=layout, **options)
        self.ours, self.switch = socket_pair()
        self.switch.settimeout(SOON_S)
        self.engine = WorkerEngine(self.protocol, self.ours, pace, batch=batch, joins=may_join(self.ours))

    def close(self) -> None:
        self.engine.close()
        self.ours.close()
        self.switch.close()

    def begin(self, blocks: Iterable[int], iteration: int = 1) -> None:
        """Begin an iteration and contribute zeros to these blocks."""
        now = time.monotonic()
        self.protocol.begin(iteration, now)
        self.protocol.contribute_all([(block, Packed(ZEROS, 3, 0, WEIGHT_UNIT)) for block in blocks], now=now)

    def arrived(self) -> KofnHeader:
        """Return the header of the next packet at the switch."""
        return decode_header(self.switch.recv(1 << 16))

    def answer(self, block: int, **fields: Any) -> None:
        self.switch.send(encode(result(block, **fields), ZEROS))

    def readable(self, within_s: float = 0.0) -> bool:
        return bool(select.select([self.engine], [], [], within_s)[0])

    def silent(self) -> bool:
        """Return whether the packets received so far are no news."""
        self.protocol._call("next_results", 0)  # the thread has processed all earlier packets then
        return not self.readable()

    def news(self) -> list[Instruction]:
        """Wait for news and return it."""
        assert self.readable(SOON_S)
        return self.protocol.news()

    def closed(self, blocks: int) -> list[int]:
        """Return the next closed blocks, in the order of their news."""
        found = list[int]()
        while len(found) < blocks:
            found += [block for one in self.news() if isinstance(one, Deliver) for block in one.results.blocks.tolist()]
        return found


def result(block: int, **fields: Any) -> KofnHeader:
    told = {"kind": Kind.RESULT, "job": 1, "iteration": 1, "words": 1, "scale": 3, "k": 1, "count": 1, "members": 1}
    return KofnHeader(block=block, **told | {"weight": WEIGHT_UNIT} | fields)


@contextmanager
def bench(**given: Any) -> Iterator[Bench]:
    made = Bench(**given)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("pace", [None, pytest.param(pacing_rate(1.0, 1), id="paced")])
def test_contribution_that_a_leaf_wants_again_leaves_with_its_values(pace: PacingRate | None) -> None:
    values = bytes(range(256))
    with bench(pace=pace) as one:
        one.protocol.begin(1, now := time.monotonic())
        one.protocol.contribute_all([(0, Packed(values, 3, 0, WEIGHT_UNIT))], now=now)
        first = one.switch.recv(1 << 16)
        one.switch.send(encode(result(0, kind=Kind.ADDED), ZEROS))
        again = one.switch.recv(1 << 16)
        assert decode_header(again)._replace(checksum=0) == decode_header(first)._replace(checksum=0)
        assert again[HEADER_BYTES:] == first[HEADER_BYTES:] == values


def test_two_jobs_share_a_socket_and_each_gets_its_own_news() -> None:
    """The second job's news comes only when its iteration is complete."""
    with bench(blocks=2) as one:
        one.engine.close()
        beside = WatchedBeside(job=129, rank=0, layout=one.protocol.layout, slots=4, window=2, rto_s=SOON_S)
        one.engine = WorkerEngine(one.protocol, one.ours, batch=1, exact_port=beside)
        one.begin([0, 1])
        for _ in range(2):
            assert one.arrived().job == 1
        now = time.monotonic()
        beside.begin(7, now)
        beside.contribute_all([(block, Packed(ZEROS, 0, 0, WEIGHT_UNIT)) for block in (0, 1)], now=now)
        assert {(one.arrived().job, one.arrived().iteration) for _ in range(1)} == {(129, 7)}
        one.answer(0, job=129, iteration=7, scale=0)
        one.answer(1)
        assert one.closed(1) == [1]
        until(lambda: beside.missing == [1])
        assert not select.select([beside], [], [], 0)[0]
        one.answer(1, job=129, iteration=7, scale=0)
        assert select.select([beside], [], [], SOON_S)[0]
        assert beside.news() == [Complete(iteration=7)]
        assert one.silent()
        assert [result.id.block for result in beside.results_of(7)] == [0, 1]
        one.answer(0, job=3)
        until(lambda: one.protocol.statistics.foreign == 1)


def test_jobs_with_results_of_other_lengths_do_not_share_a_socket() -> None:
    with bench() as one:
        longer = BlockLayout(blocks=1, words=2, widest=32)
        beside = WatchedBeside(job=129, rank=0, layout=longer, slots=4, window=2, rto_s=SOON_S)
        with pytest.raises(ProtocolError, match="results of both jobs must have the same number of words, got 1 and 2"):
            WorkerEngine(one.protocol, one.ours, exact_port=beside)


# -- many packets


class Switch(threading.Thread):
    """The slot model at the other ends of the workers' sockets, until they are closed."""

    def __init__(self, benches: list[Bench], slots: int) -> None:
        super().__init__(daemon=True)
        self.model = SlotModel(workers=len(benches), k=len(benches), slots=slots)
        self.ends = [one.switch for one in benches]
        self.over = False

    def run(self) -> None:
        while not self.over:
            for end in select.select(self.ends, [], [], 0.01)[0]:
                datagram = end.recv(1 << 16)
                for rank, header, values in self.model.handle(decode_header(datagram), datagram[HEADER_BYTES:]):
                    self.ends[rank].send(encode(header, values))


def test_many_packets_are_summed_and_counted_both_ways() -> None:
    """Two workers sum 500 blocks three times. The counters equal the packets on the sockets."""
    blocks, iterations = 500, 3
    benches = [Bench(blocks=blocks, rank=rank, slots=256, window=64) for rank in range(2)]
    switch, random = Switch(benches, 256), np.random.default_rng(1)
    switch.start()
    for iteration in range(1, iterations + 1):
        lanes = random.integers(-(2**20), 2**20, (2, blocks, 64))
        for one, own in zip(benches, lanes, strict=True):
            now = time.monotonic()
            one.protocol.begin(iteration, now)
            packed = [(block, Packed(own[block].astype(">i4").tobytes(), 3, 0, WEIGHT_UNIT)) for block in range(blocks)]
            one.protocol.contribute_all(PackedBlocks.of(packed), now=now)
        for one in benches:
            sums = np.zeros((blocks, 64), np.int64)
            for each in told_of(one, iteration):
                assert not sums[each.id.block].any(), "each block must be summed once"
                sums[each.id.block] = np.frombuffer(each.values, ">i4")
            assert np.array_equal(sums, lanes.sum(axis=0))
    switch.over = True
    switch.join()
    for one in benches:
        one.engine.close()
        traffic, counted = one.engine.traffic, one.protocol.statistics
        assert traffic.packets_sent == blocks * iterations + counted.retransmissions
        assert traffic.packets_received >= blocks * iterations
        packet_bytes = HEADER_BYTES + WORD_BYTES
        assert (traffic.bytes_sent, traffic.bytes_received) == (
            packet_bytes * traffic.packets_sent,
            packet_bytes * traffic.packets_received,
        )
        assert counted.wire_bytes == WORD_BYTES * traffic.packets_sent
        one.close()


def test_engine_does_not_wait_while_received_packets_are_left() -> None:
    """The engine first handles as many packets as it can at a time, all of another job, so no timer wakes it."""
    with bench(rto_s=10 * SOON_S) as one:
        one.begin(range(16))
        for _ in range(16):
            one.arrived()
        assert may_join(one.switch)
        with one.protocol.held():
            one.answer(0, job=2)
            until(lambda: not select.select([one.ours], [], [], 0)[0])  # the engine has read the packet, and waits
            for answers in ([result(0, job=2)] * AT_ONCE, [result(block) for block in range(16)]):
                packets = [encode(answer, ZEROS) for answer in answers]
                size = struct.pack("H", len(packets[0]))
                one.switch.sendmsg([b"".join(packets)], [(socket.IPPROTO_UDP, UDP_SEGMENT, size)])
        assert one.closed(16) == list(range(16))


def told_of(one: Bench, iteration: int) -> list[Result]:
    """Return all results of an iteration from the news before its end."""
    found = list[Result]()
    while True:
        for instruction in one.news():
            if isinstance(instruction, Deliver):
                found += instruction.results
            if isinstance(instruction, Complete):
                assert instruction.iteration == iteration
                return found


# -- datagrams that are no packets


def test_datagrams_that_are_no_packets_are_counted_by_kind_without_news() -> None:
    with bench() as one:
        one.begin([0])
        one.arrived()
        good = encode(result(0), ZEROS)
        damaged = bytearray(good)
        damaged[-1] ^= 1
        other_version = bytes([(VERSION + 1) << 4 | good[0] & 15]) + good[1:]
        longest = encode(result(0, words=32), bytes(PACKET_BYTES_MAX - HEADER_BYTES))
        for datagram in (
            b"",
            b"x" * (HEADER_BYTES - 1),
            other_version,
            good[:-2],
            good + b"x",
            longest + b"x",
            damaged,
        ):
            one.switch.send(datagram)
        until(lambda: one.engine.traffic.packets_received == 7)
        kinds = ("short_packets", "other_version", "wrong_length", "damaged")
        assert [asdict(one.engine.traffic)[kind] for kind in kinds] == [2, 1, 3, 1]
        assert one.silent()
        assert one.protocol.missing == list(range(16))
        one.switch.send(good)
        assert one.closed(1) == [0]


# -- a switch that is absent


def test_engine_survives_an_absent_switch() -> None:
    """Sends fail until the switch exists; then the packets are retransmitted."""
    with bench(rto_s=0.02) as one:
        place = one.switch.getsockname()
        one.switch.close()
        one.begin(range(4))
        until(lambda: one.engine.traffic.packets_sent + one.engine.traffic.send_failures >= 8)
        one.switch = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.switch.settimeout(SOON_S)
        one.switch.bind(place)
        one.switch.connect(one.ours.getsockname())
        missing = {0, 1, 2, 3}
        while missing:
            block = one.arrived().block
            one.answer(block)
            missing.discard(block)
        assert sorted(one.closed(4)) == [0, 1, 2, 3]
        assert one.engine.error is None


# -- the end


def flood(to: socket.socket, over: threading.Event) -> None:
    datagrams = [encode(result(block), ZEROS) for block in range(16)] + [b"garbage"]
    while not over.is_set():
        for datagram in datagrams:
            try:
                to.send(datagram)
            except ConnectionRefusedError:
                return


@pytest.mark.parametrize("pace", [None, pacing_rate(1.0, 1)], ids=["as-they-come", "paced"])
def test_engine_may_be_closed_while_it_is_busy(pace: PacingRate | None) -> None:
    """Packets arrive, leave and wait, and the news is not read."""
    for _ in range(20):
        one, over = Bench(pace=pace), threading.Event()
        busy = threading.Thread(target=flood, args=(one.switch, over))
        busy.start()
        one.begin(range(16))
        until(lambda one=one: one.engine.traffic.packets_received > 40)
        one.engine.close()
        traffic, news = one.engine.traffic, one.protocol.news()
        one.engine.close()
        over.set()
        busy.join()
        assert one.engine.traffic == traffic != Traffic()
        assert (news, one.protocol.share) == ([], 1.0), "the core must still work"
        assert one.ours.send(b"x") == 1, "the socket must still be open"
        one.close()


def test_packets_that_wait_at_the_end_never_leave() -> None:
    with bench(pace=PacingRate(mbps=0.01, burst_bytes=BURST)) as one:
        one.begin(range(16))
        until(lambda: one.engine.traffic.packets_sent == BURST_PACKETS)
        assert one.engine.queued == 16 - BURST_PACKETS
        one.engine.close()
        assert [one.arrived().block for _ in range(BURST_PACKETS)] == [0, 1, 2, 3]
        one.switch.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.switch.recv(1 << 16)
        assert one.engine.traffic.packets_sent == BURST_PACKETS


def test_stopped_engine_gives_its_reason() -> None:
    """Every call raises the protocol's error, and the engine can be closed."""
    with bench() as one:
        one.begin([0])
        one.answer(3, iteration=2)
        one.answer(3, iteration=2, weight=1)
        with pytest.raises(ProtocolError, match="replicas have parted"):
            while True:
                one.news()
        with pytest.raises(ProtocolError, match="replicas have parted"):
            one.protocol.news()


# -- news


def test_foreign_and_repeated_packets_are_no_news() -> None:
    with bench() as one:
        one.begin([0, 1])
        assert [one.arrived().block for _ in range(2)] == [0, 1]
        one.answer(0, job=2)
        until(lambda: one.engine.traffic.packets_received == 1)
        assert one.silent(), "foreign packets are no news"
        assert one.protocol.news() == []
        one.answer(0)
        assert one.closed(1) == [0]
        assert one.silent()
        assert one.protocol.news() == []
        one.answer(0)
        until(lambda: one.engine.traffic.packets_received == 3)
        assert one.silent(), "the block is closed already"


def test_fewer_results_than_a_batch_are_news() -> None:
    with bench(batch=8) as one:
        one.begin(range(16))
        for block in range(16):
            assert one.arrived().block == block
        for block in (3, 5):
            one.answer(block)
            assert one.closed(1) == [block]


def test_being_left_behind_is_news_once() -> None:
    with bench() as one:
        one.begin([0])
        one.arrived()
        one.answer(5, iteration=2)
        assert not [told for told in one.news() if isinstance(told, Deliver)]
        assert one.protocol.left_behind
        one.answer(6, iteration=2)
        until(lambda: one.engine.traffic.packets_received == 2)
        assert one.silent()


def test_caller_that_wants_room_is_told_once() -> None:
    """Four packets leave at once, the others one by one; none is answered."""
    with bench(pace=PacingRate(mbps=1.0, burst_bytes=BURST)) as one:
        one.begin(range(16))
        one.engine.want(4)
        assert not one.readable() or one.engine.queued < 4
        assert one.readable(SOON_S)
        assert one.engine.queued < 4
        assert one.protocol.news() == []
        until(lambda: one.engine.queued == 0)
        assert not one.readable(), "the caller must be told only once"
        one.engine.want(1)
        assert one.readable(SOON_S), "there is room, so the caller must be told at once"


def test_blocks_that_wait_for_the_window_count_as_queued() -> None:
    """Two of four blocks are in flight."""
    with bench(window=2) as one:
        one.begin(range(4))
        assert [one.arrived().block for _ in range(2)] == [0, 1]
        one.engine.want(2)
        assert not one.readable(0.05)
        one.engine.want(3)
        assert one.readable(SOON_S)
        assert one.protocol.news() == []


# -- pacing and timers


def test_packets_leave_at_their_pace() -> None:
    """The kernel's timestamps show it: 56 of 60 packets wait for their turn, 1.5 ms each."""
    with bench(pace=PacingRate(mbps=2.0, burst_bytes=BURST), blocks=60, slots=256, window=64) as one:
        one.switch.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        one.begin(range(60))
        stamps, blocks = list[float](), list[int]()
        for _ in range(60):
            datagram, ((_, _, stamp),), _, _ = one.switch.recvmsg(1 << 16, 64)
            seconds, nanoseconds = np.frombuffer(stamp, np.int64).tolist()
            stamps.append(seconds + 1e-9 * nanoseconds)
            blocks.append(decode_header(datagram).block)
    assert blocks == list(range(60))
    frame_s = FRAME * 8e-6 / 2.0
    for first in range(60):
        for last in range(first, 60):
            late_s = 0.016 + 0.002
            assert stamps[last] - stamps[first] >= (last - first + 1 - BURST_PACKETS) * frame_s - late_s
    assert stamps[-1] - stamps[0] < 10 * 56 * frame_s


@pytest.mark.parametrize(("recipient", "first"), [(EVERYONE, 1), (1, 4), (0, 4)])
def test_vote_counts_take_their_planes_of_the_pace_where_all_arrive_here(recipient: int, first: int) -> None:
    """With one recipient a worker gets one sum in as many as there are workers. The next packet
    leaves minutes later.
    """
    with bench(pace=PacingRate(mbps=1e-5, burst_bytes=BURST), votes=True) as one:
        now = time.monotonic()
        one.protocol.begin(1, now, lanes=Lanes.VOTES)
        one.protocol.received([recipient] * 16)
        one.protocol.contribute_all([(block, Packed(ZEROS, 3, Lanes.VOTES, 1)) for block in range(16)], now=now)
        for block in range(first):
            assert one.arrived().block == block
        assert one.engine.queued == 16 - first


def test_result_that_arrives_while_packets_wait_is_news_at_once() -> None:
    """At 10 kbit/s a packet leaves every quarter of a second."""
    with bench(pace=PacingRate(mbps=0.01, burst_bytes=BURST)) as one:
        one.begin(range(16))
        one.answer(one.arrived().block)
        assert one.closed(1) == [0]
        assert one.engine.queued > 0


@pytest.mark.slow
def test_answer_is_not_due_before_its_packet_has_left() -> None:
    """All packets that have left are answered. The fifth leaves in half a second, and answers took milliseconds."""
    frame_s, rto_s = 0.5, 0.01
    with bench(pace=PacingRate(mbps=FRAME * 8e-6 / frame_s, burst_bytes=BURST), rto_s=rto_s) as one:
        begun_s = time.monotonic()
        one.begin(range(5))
        for _ in range(4):
            one.answer(one.arrived().block)
        one.closed(4)
        deadline_s = one.protocol.deadline
        assert deadline_s is not None
        assert deadline_s >= begun_s + frame_s
        assert one.arrived().block == 4


@cache
def holder() -> ctypes.CDLL:
    """Return the library with the function of hold.c."""
    texts = {path.name: path.read_text() for folder in (*FOLDERS, HERE) for path in sorted(folder.glob("*.[ch]"))}
    sources = [name for name in texts if name.endswith(".c") and name != "engine.c"]
    return load_library(compile_texts(texts, sources), {"engine_hold": (None, [ctypes.c_void_p, ctypes.c_double])})


@pytest.mark.slow
def test_received_packets_are_read_before_a_timer_fires() -> None:
    """A caller that keeps the thread from its core beyond the deadline causes no retransmission."""
    hold = holder().engine_hold
    with bench(rto_s=0.3) as one:
        one.begin([0])
        one.arrived()
        deadline_s = one.protocol.deadline
        assert deadline_s is not None
        held = threading.Thread(target=hold, args=(one.engine._engine, deadline_s + 0.01))
        held.start()
        time.sleep(0.05)
        one.answer(0)
        held.join()
        assert one.closed(1) == [0]
        assert one.protocol.statistics.retransmissions == 0
