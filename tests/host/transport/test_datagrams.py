"""Many packets in one call: the same bytes and errors as one by one, and the addresses that could not be reached."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_common.config.job import JobSection
from kofn_common.nativebuild.errors import CompilerMissing
from kofn_common.wire import packet as wire
from kofn_common.wire.errors import ChecksumError
from kofn_common.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX, WORD_BYTES, KofnHeader
from kofn_host.native import library
from kofn_host.transport.datagrams import BATCH, Datagrams, Packet
from kofn_host.transport.transport import Transport
from kofn_host.transport.udp import may_join, udp_socket

ROOT = Path(__file__).parents[3]
ONE, OTHER, PORT = "127.0.79.1", "127.0.79.2", 19311


def place(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = udp_socket(ONE, PORT), udp_socket(OTHER, PORT)
    one.connect((OTHER, PORT))
    other.settimeout(0)
    with one, other:
        yield one, other


def packet(number: int, words: int = 1, values: bytes | None = None) -> Packet:
    content = np.random.default_rng(number).bytes(words * WORD_BYTES) if values is None else values
    return KofnHeader(words=words, block=number, members=1 << 63 | number, scale=-number % 7 - 3), content


@st.composite
def headers(draw: st.DrawFn) -> KofnHeader:
    """Draw any packet of up to three words."""
    fields = {}
    for name, bits in wire.HEADER_FIELDS:
        below = 1 << bits - (name in wire.SIGNED_FIELDS)
        fields[name] = draw(st.integers(-below if name in wire.SIGNED_FIELDS else 0, below - 1))
    return KofnHeader(**fields | {"words": draw(st.integers(1, 3)), "checksum": 0})


OCTETS = st.sampled_from([b"\0", b"\xff", b"\x01", b"\x80"])


@pytest.mark.parametrize("joins", [False, True])
@given(packets=st.lists(st.tuples(headers(), OCTETS), min_size=1, max_size=12))
@pytest.mark.slow
def test_packets_sent_together_equal_packets_sent_singly(joins: bool, packets: list[tuple[KofnHeader, bytes]]) -> None:
    made = [(header, octet * header.words * WORD_BYTES) for header, octet in packets]
    with udp_socket(ONE, PORT) as one, udp_socket(OTHER, PORT) as other:
        one.connect((OTHER, PORT))
        sender = Datagrams(one, joins=joins and may_join(one))
        assert sender.send(made).accepted == [True] * len(made)
        assert sender.joins == joins, "the kernel must not refuse coalesced datagrams"
        for header, values in made:
            assert other.recv(1 << 16, socket.MSG_DONTWAIT) == wire.encode(header, values)


@pytest.mark.parametrize("words", [1, 32])
def test_more_packets_than_the_kernel_coalesces(ends: tuple[socket.socket, socket.socket], words: int) -> None:
    one, other = ends
    sent = [packet(number, words) for number in range(150)]
    assert Datagrams(one, joins=may_join(one)).send(sent).accepted == [True] * len(sent)
    for header, values in sent:
        assert other.recv(1 << 16) == wire.encode(header, values)


def test_packets_leave_singly_if_the_kernel_refuses_to_coalesce(ends: tuple[socket.socket, socket.socket]) -> None:
    """It refuses without UDP's checksum."""
    one, other = ends
    sender, sent = Datagrams(one, joins=True), [packet(number) for number in range(70)]
    assert sender.send(sent).accepted == [True] * len(sent)
    assert not sender.joins
    for header, values in sent:
        assert other.recv(1 << 16) == wire.encode(header, values)


CABLE = f"""
import asyncio, json, socket, subprocess, sys
sys.path.insert(0, {str(ROOT / "mininet")!r})
import interfaces
from kofn_host.transport.datagrams import Datagrams
from kofn_host.transport.transport import Transport
from kofn_common.wire.packet import KofnHeader

for line in ("link add here type veth peer name there", "link set here mtu 9000 up", "link set there mtu 9000 up",
             "addr add 10.9.0.1/24 dev here", "neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev here"):
    subprocess.run(["ip", *line.split()], check=True)
if sys.argv[1] == "kofn's":
    interfaces.disable_offloads("here")
seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
seen.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)  # SO_RCVBUFFORCE
seen.bind(("there", 0))
seen.settimeout(10)
transport = Transport("10.9.0.2", "10.9.0.1", switch_segments=sys.argv[2] == "switch")
opened = transport.open(asyncio.new_event_loop())
sender = Datagrams(opened, joins=transport.joins)
sender.send([(KofnHeader(words=32, block=block), bytes(8192)) for block in range(20)])
sizes = []
while sum(sizes) < 20 * 8192:
    sizes.append(len(seen.recv(1 << 17)))
print(json.dumps([sender.joins, sizes]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize(
    ("cable", "segments", "messages"),
    [("kofn's", "kernel", [1] * 20), ("any", "kernel", [1] * 20), ("any", "switch", [7, 7, 6])],
)
def test_switch_sees_single_packets(cable: str, segments: str, messages: list[int]) -> None:
    """Coalesced packets are segmented before the cable.  On another network packets are coalesced only if the switch
    segments them."""
    command = ["unshare", "--net", sys.executable, "-c", CABLE, cable, segments]
    joins, sizes = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    assert joins == (cable == "kofn's" or segments == "switch")
    assert sizes == [wire.FRAME_BYTES + packets * (HEADER_BYTES + 8192) for packets in messages]


def test_packets_are_read_together_as_singly(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    sent = [packet(number, 1 + number % 32) for number in range(BATCH + 10)]
    for header, values in sent:
        one.send(wire.encode(header, values))
    reader = Datagrams(other)
    first, second, nothing = reader.receive(), reader.receive(), reader.receive()
    assert (len(first.packets), len(second.packets), nothing) == (BATCH, 10, ([], [], [], []))
    for (header, values), (found, content) in zip(sent, first.packets + second.packets, strict=True):
        assert found._replace(checksum=0) == header
        assert content == values
    assert first.sizes[:3] == [HEADER_BYTES + words * WORD_BYTES for words in (1, 2, 3)]


def test_invalid_datagrams_are_told_apart(ends: tuple[socket.socket, socket.socket]) -> None:
    one, other = ends
    good = wire.encode(*packet(1))
    damaged, longest = bytearray(good), wire.encode(*packet(2, 32))
    damaged[-1] ^= 1
    for datagram in (b"", b"x" * 37, good[:-2], good, damaged, b"\x10" + good[1:], longest + b"x", longest):
        one.send(datagram)
    received = Datagrams(other, senders=True).receive()
    assert [header.block for header, _ in received.packets] == [1, 2]
    assert received.senders == [place(ONE)] * 2
    assert [type(error) is ChecksumError for error in received.errors] == [False, False, False, True, False, False]
    assert [str(error)[:23] for error in received.errors][:2] == ["a datagram of 0 bytes: ", "a datagram of 37 bytes:"]
    assert len(received.sizes) == 8


def test_packets_go_to_their_addresses_and_unreachable_ones_are_skipped() -> None:
    with udp_socket(ONE, PORT) as one, udp_socket(OTHER, PORT) as other:
        places = [place(address) for address in (OTHER, "255.255.255.255", ONE, OTHER)]
        sent = Datagrams(one).send([packet(number) for number in range(4)], places, PORT)
        assert sent.accepted == [True, False, True, True], "broadcast must fail without permission"
        assert sent.error
        assert [wire.decode_header(other.recv(9000)).block for _ in range(2)] == [0, 3]
        assert wire.decode_header(one.recv(9000)).block == 2


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    monkeypatch.setattr("kofn_host.transport.datagrams.library", library.__wrapped__)
    with udp_socket(ONE, PORT) as one, pytest.raises(CompilerMissing, match="no C compiler"):
        Datagrams(one)


@pytest.mark.root
def test_window_of_the_largest_packets_may_wait_for_the_link() -> None:
    """The kernel counts waiting packets at up to twice their size; packets beyond its buffer would be lost."""
    transport = Transport("127.0.79.254", local="127.0.79.1")
    with contextlib.closing(transport):
        room = transport._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert room >= 2 * JobSection().window * 2 * PACKET_BYTES_MAX


def test_socket_that_waits_for_room_loses_nothing() -> None:
    """A local pair of sockets holds a few datagrams only."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    packets = [(KofnHeader(block=block, words=1), bytes(WORD_BYTES)) for block in range(100)]
    with ours, theirs, ThreadPoolExecutor() as pool:
        read = pool.submit(lambda: [wire.decode_header(theirs.recv(4096)).block for _ in packets])
        assert all(Datagrams(ours).send(packets).accepted)
        assert read.result() == list(range(100))
