"""Datagrams that the kernel coalesces: received as if they came singly, and coalesced only where they may be."""

import json
import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_common.wire import packet as wire
from kofn_common.wire.errors import ChecksumError
from kofn_common.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX, WORD_BYTES, KofnHeader
from kofn_host.transport.datagrams import BATCH, Datagrams, Packet, Received
from kofn_host.transport.udp import may_join, udp_socket

ROOT = Path(__file__).parents[3]
ONE, TWO, OTHER, PORT = "127.0.78.1", "127.0.78.2", "127.0.78.3", 19312
UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h; Python has no names for them
ONE_WORD = HEADER_BYTES + WORD_BYTES


class Lines:
    """Two senders and a receiver on loopback; the receiver has begun to receive."""

    def __init__(self) -> None:
        self.senders = [udp_socket(address, PORT) for address in (ONE, TWO)]
        self.socket = udp_socket(OTHER, PORT)
        for sender in self.senders:
            assert may_join(sender)
            sender.connect((OTHER, PORT))
        self.reader = Datagrams(self.socket, senders=True)
        assert not self.reader.receive().sizes

    def close(self) -> None:
        for opened in (*self.senders, self.socket):
            opened.close()

    def send(self, train: Sequence[bytes], sender: int = 0) -> None:
        """Send datagrams of the first one's size, of which the last one may be shorter, as one message."""
        size = struct.pack("H", len(train[0]))
        self.senders[sender].sendmsg([b"".join(train)], [(socket.IPPROTO_UDP, UDP_SEGMENT, size)])

    @property
    def readable(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    def all(self) -> Received:
        """Receive until nothing is left."""
        found = [self.reader.receive()]
        while found[-1].sizes:
            found.append(self.reader.receive())
        return Received(
            [packet for part in found for packet in part.packets],
            [sender for part in found for sender in part.senders],
            [error for part in found for error in part.errors],
            [size for part in found for size in part.sizes],
        )


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    yield made
    made.close()


def packet(number: int, words: int = 1) -> Packet:
    content = np.random.default_rng(number).bytes(words * WORD_BYTES)
    return KofnHeader(words=words, block=number, members=1 << 63 | number), content


def blocks_of(received: Received) -> list[int]:
    return [header.block for header, _ in received.packets]


def test_coalesced_messages_with_more_datagrams_than_a_batch(lines: Lines) -> None:
    """Datagrams that an earlier call has left over do not make the socket readable."""
    packets = [packet(number) for number in range(200)]
    for begin in range(0, 200, 50):
        lines.send([wire.encode(*each) for each in packets[begin : begin + 50]])
    first = lines.reader.receive()
    assert not lines.readable
    second, nothing = lines.reader.receive(), lines.reader.receive()
    assert [len(each.sizes) for each in (first, second, nothing)] == [BATCH, 200 - BATCH, 0]
    found = [(header._replace(checksum=0), values) for header, values in first.packets + second.packets]
    assert found == packets


def test_more_messages_than_one_system_call_receives(lines: Lines) -> None:
    for begin in range(0, 60, 3):
        lines.send([wire.encode(*packet(number)) for number in range(begin, begin + 3)], begin % 2)
    received = lines.reader.receive()
    assert blocks_of(received) == list(range(60))
    assert received.senders == [wire_place(TWO if number // 3 % 2 else ONE) for number in range(60)]


def wire_place(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address))


def test_mixed_sizes_damaged_packets_and_a_short_last_one(lines: Lines) -> None:
    damaged = bytearray(wire.encode(*packet(2, 2)))
    damaged[-1] ^= 1
    lines.send([wire.encode(*packet(1, 2)), bytes(damaged), wire.encode(*packet(3, 2)), wire.encode(*packet(4))])
    lines.senders[1].send(b"")
    lines.send([b"x" * 9, b"y"], 1)
    lines.send([bytes(PACKET_BYTES_MAX + 1), wire.encode(*packet(6, 32))], 1)
    received = lines.reader.receive()
    assert blocks_of(received) == [1, 3, 4, 6]
    assert received.senders == [wire_place(ONE)] * 3 + [wire_place(TWO)]
    two, most = (HEADER_BYTES + words * WORD_BYTES for words in (2, 32))
    assert received.sizes == [two, two, two, ONE_WORD, 0, 9, 1, PACKET_BYTES_MAX + 1, most]
    assert [isinstance(error, ChecksumError) for error in received.errors] == [True, False, False, False, False]


@st.composite
def trains(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """Draw a sender, and datagrams of one size of which the last one may be shorter; some are no valid packets."""
    words = draw(st.sampled_from([1, 2, 4, 32]))
    size = draw(
        st.sampled_from([HEADER_BYTES + words * WORD_BYTES] * 3 + [1, HEADER_BYTES, PACKET_BYTES_MAX + 1, 9500])
    )
    count = draw(st.integers(1, min(64, 30_000 // size)))
    train = [draw(datagrams(size)) for _ in range(count)]
    shorter = draw(st.one_of(st.just(size), st.integers(1, size), st.just(max(1, size - WORD_BYTES))))
    return draw(st.integers(0, 1)), [*train[:-1], draw(datagrams(shorter))]


@st.composite
def datagrams(draw: st.DrawFn, size: int) -> bytes:
    words, rest = divmod(size - HEADER_BYTES, WORD_BYTES)
    if rest or words < 1:
        return draw(st.sampled_from([b"\0", b"\xff"])) * size
    made = bytearray(wire.encode(*packet(draw(st.integers(0, 1000)), words)))
    if not draw(st.integers(0, 4)):
        made[draw(st.integers(0, size - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(made)


@given(sent=st.lists(trains(), min_size=1, max_size=5))
def test_coalesced_datagrams_are_received_as_single_ones(sent: list[tuple[int, list[bytes]]]) -> None:
    lines = Lines()
    try:
        for sender, train in sent:
            for datagram in train:
                lines.senders[sender].send(datagram)
        singly = lines.all()
        for sender, train in sent:
            lines.send(train, sender)
        together = lines.all()
    finally:
        lines.close()
    assert singly.sizes == [len(datagram) for _, train in sent for datagram in train]
    assert together[:2] == singly[:2]
    assert [*map(repr, together.errors)] == [*map(repr, singly.errors)]
    assert together.sizes == singly.sizes


def test_socket_that_the_kernel_does_not_coalesce_for() -> None:
    """A local socket has no UDP_GRO; its datagrams may be longer than any UDP datagram."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        for datagram in (b"x" * 70_000, wire.encode(*packet(7))):
            ours.send(datagram)
        received = Datagrams(theirs).receive()
    assert received.sizes == [70_000, ONE_WORD]
    assert blocks_of(received) == [7]
    assert len(received.errors) == 1


def test_only_a_socket_that_datagrams_receives_from_gets_coalesced_messages(lines: Lines) -> None:
    plain = lines.senders[0]
    Datagrams(plain).send([packet(0)])
    assert lines.socket.getsockopt(socket.IPPROTO_UDP, UDP_GRO)
    assert not plain.getsockopt(socket.IPPROTO_UDP, UDP_GRO)


def test_consecutive_packets_to_one_address_are_coalesced(lines: Lines) -> None:
    """Their order stays; a refused address does not keep the others from leaving."""
    opened = lines.senders[0]
    with udp_socket(ONE, PORT + 1) as sender:
        for receiver in (opened, lines.senders[1]):
            receiver.connect((ONE, PORT + 1))
            receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        places = [
            wire_place(address) for address in (ONE, ONE, "255.255.255.255", "255.255.255.255", ONE, TWO, TWO, TWO)
        ]
        sent = Datagrams(sender, joins=may_join(sender)).send([packet(number) for number in range(8)], places, PORT)
        assert sent.accepted == [True, True, False, False, True, True, True, True]
        assert sent.error
        heard = [receiver.recv(1 << 16) for receiver in (opened, opened, lines.senders[1])]
    assert [len(message) // ONE_WORD for message in heard] == [2, 1, 3]
    starts = [message[at : at + ONE_WORD] for message in heard for at in range(0, len(message), ONE_WORD)]
    assert [wire.decode_header(start).block for start in starts] == [0, 1, 4, 5, 6, 7]


INTERFACES = f"""
import json, subprocess, sys
sys.path.insert(0, {str(ROOT / "mininet")!r})
import interfaces
from kofn_host.transport.udp import may_join, udp_socket

for line in ("link set lo up", "link add one type veth peer name two", "addr add 10.9.0.1/24 dev one",
             "addr add 10.8.0.1/24 dev two", "link set one up", "link set two up"):
    subprocess.run(["ip", *line.split()], check=True)
found = []
for ready in ([], ["one"], ["two"]):
    for name in ready:
        interfaces.disable_offloads(name)
    for local in ("127.0.0.1", "10.9.0.1", "10.8.0.1", ""):
        with udp_socket(local, 7) as opened:
            found.append([may_join(opened), may_join(opened, switch_segments=True)])
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_packets_are_coalesced_where_every_interface_allows_it() -> None:
    """An interface allows it if it computes no checksums; the switch may allow it everywhere."""
    command = ["unshare", "--net", sys.executable, "-c", INTERFACES]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert all(switch for _, switch in found)
    loopback_only, one_ready, both_ready = (
        [kernel for kernel, _ in found[begin : begin + 4]] for begin in range(0, 12, 4)
    )
    assert loopback_only == [True, False, False, False]
    assert one_ready == [True, True, False, False]
    assert both_ready == [True, True, True, True]
