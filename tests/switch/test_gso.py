"""Coalesced packets: the program, captures, faults and counters have the same frames as without GSO."""

import ctypes
import random
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kofn_common.gso import COALESCED_BYTES, gso_works
from kofn_switch.engine.engine import Engine
from kofn_switch.engine.faults import FaultRule
from kofn_switch.errors import SwitchError
from kofn_switch.native import runtime
from tests.switch import gso
from tests.switch.build import const, document, field
from tests.switch.gso import BODY, IP, UDP
from tests.switch.reference.hashes import csum16
from tests.switch.test_ports import alone, links, pcap_packets
from tests.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(not gso_works(), reason="the kernel coalesces no frames here")]

PROGRAM = (Path(__file__).parent / "programs" / "route.json").read_bytes()
DONT_FRAGMENT = 0x4000
TRAINS = 1000


def datagram(
    body: bytes,
    *,
    port: int = 4000,
    identification: int = 0,
    fragment: int = DONT_FRAGMENT,
    ttl: int = 64,
    protocol: int = socket.IPPROTO_UDP,
) -> bytes:
    """Return a frame with a UDP datagram without checksum."""
    ends = b"\x0a\0\0\1", b"\x0a\0\0\2"
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 0, 0, fragment, ttl, protocol, 0, *ends)
    udp = struct.pack(">HHHH", 5000, port, BODY - UDP + len(body), 0)
    frame = b"\2\0\0\0\0\1\2\0\0\0\0\2\x08\0" + ip + udp + body
    return gso.with_ip(frame, len(frame) - IP, identification)


def train(rng: random.Random, mtu: int) -> list[bytes]:
    """Return the datagrams of a coalesced packet, as the kernel would send them one by one."""
    size = rng.choice((1, 2, 65, 1096, 1472, rng.randint(1, mtu - 28), mtu - 28))
    size = min(size, mtu - 28)
    most = min(64, 65000 // size)
    count, port, fragment = rng.randint(2, most), rng.choice((9, 4000, 4000, 4001)), rng.choice((0, DONT_FRAGMENT))
    first, ttl = rng.randrange(65536), rng.choice((1, 64, 64, 64))
    sizes = [size] * (count - 1) + [rng.choice((size, rng.randint(1, size)))]
    return [
        gso.with_udp_checksum(
            datagram(rng.randbytes(one), port=port, identification=first + at, fragment=fragment, ttl=ttl)
        )
        for at, one in enumerate(sizes)
    ]


def foreign(rng: random.Random, mtu: int) -> bytes:
    """Return a frame that is in no coalesced packet."""
    frame = datagram(rng.randbytes(rng.randint(0, mtu - 28)), identification=rng.randrange(65536))
    cut = bytearray(gso.with_udp_checksum(frame))
    cut[rng.randrange(IP, BODY)] ^= 1 << rng.randrange(8)  # lengths, checksums and addresses that do not fit
    kinds = (
        frame,
        bytes(cut),
        gso.with_udp_checksum(frame),
        datagram(rng.randbytes(30), fragment=0x2000 | rng.randrange(64)),
        datagram(rng.randbytes(40), protocol=socket.IPPROTO_TCP),
        frame[:12] + (36).to_bytes(2, "big") + b"\xaa\xaa\3" + rng.randbytes(33),  # LLC
        frame[:12] + b"\x88\xb5" + rng.randbytes(80),
        frame[:BODY] + bytes(rng.randint(1, 18)),
    )
    return rng.choice(kinds)


def batches(seed: int, mtu: int, count: int) -> Iterator[list[list[bytes]]]:
    """Yield batches of packets of one or more frames each; `count` of all packets are coalesced."""
    rng, left = random.Random(seed), count
    while left:
        batch = [train(rng, mtu) if rng.random() < 0.7 else [foreign(rng, mtu)] for _ in range(rng.randint(1, 8))]
        yield batch
        left = max(0, left - sum(len(frames) > 1 for frames in batch))


def plain(frame: bytes) -> bytes:
    """Return a frame but for what the kernel may change: an absent UDP checksum, and the identification of a datagram
    that must not be fragmented."""
    if frame[12:15] != b"\x08\0\x45" or frame[IP + 9] != socket.IPPROTO_UDP or csum16(frame[IP:UDP]):
        return frame
    if frame[IP + 6 : UDP - 12] == b"\x40\0":
        frame = gso.with_ip(frame, int.from_bytes(frame[IP + 2 : IP + 4], "big"), 0)
    return frame if any(frame[UDP + 6 : BODY]) else gso.with_udp_checksum(frame)


def received(opened: socket.socket, count: int) -> list[list[bytes]]:
    """Return the frames of each packet, until there are so many frames."""
    packets = list[list[bytes]]()
    while sum(map(len, packets)) < count:
        packets.append(gso.segmented(opened.recv(1 << 17)))
    return packets


def engine(program: bytes = PROGRAM, **options: object) -> Engine:
    made = Engine({1: "s1", 2: "s2"}, **options)  # type: ignore[arg-type]  # each test has its own options
    made.load(program)
    made.start()
    return made


def passing(header_bytes: int) -> bytes:
    """Return a program that parses so many bytes as one header, and sends each packet unchanged to port 2."""
    to_port = {"op": "assign", "parameters": [field("standard_metadata", "egress_spec"), const(2)]}
    types = {"header_t": [["bits", 8 * header_bytes, False]]}
    return document(header_types=types, headers={"header": "header_t"}, primitives=[to_port])


def send_together(routed: Engine, host: socket.socket, frames: list[bytes]) -> None:
    """Send frames so that they leave the switch in one batch, or all but the first."""
    core = ctypes.c_void_p(routed._core)
    runtime().core_lock(core)
    for frame in frames:
        host.send(gso.alone(frame))
    runtime().core_unlock(core)


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_random_packets_leave_as_their_frames_alone_would(mtu: int) -> None:
    def body() -> None:
        one, two = gso.ends(mtu)
        routed, single = engine(), Engine({})
        single.load(PROGRAM)
        coalesced = total = 0
        for batch in batches(7, mtu, TRAINS):
            expected = [out for frames in batch for frame in frames for _, out in single.inject(1, frame)]
            for frames in batch:
                one.send(gso.coalesced(frames) if len(frames) > 1 else gso.alone(frames[0]))
            got = received(two, len(expected))
            assert [plain(frame) for frames in got for frame in frames] == list(map(plain, expected))
            coalesced += sum(len(frames) > 1 for frames in got)
            total += sum(map(len, batch))
        assert coalesced > TRAINS / 3
        assert routed.stats().ports[1].received_packets == total
        routed.stop()

    alone(body)


def test_partial_checksum_is_completed() -> None:
    """A host whose interface computes checksums leaves them to the switch."""

    def body() -> None:
        one, two = gso.ends()
        routed = engine()
        frame = gso.with_udp_checksum(datagram(b"half a checksum"))
        partial = ~csum16(gso.pseudo(frame, len(frame) - UDP)) & 0xFFFF
        offload = gso.OFFLOAD.pack(gso.NEEDS_CSUM, 0, 0, 0, UDP, 6)
        one.send(offload + frame[: UDP + 6] + partial.to_bytes(2, "big") + frame[BODY:])
        assert received(two, 1)[0][0][UDP:] == frame[UDP:]
        routed.stop()

    alone(body)


def datagrams(count: int, size: int = 1000) -> list[bytes]:
    return [gso.with_udp_checksum(datagram(bytes([at]) * size, identification=at)) for at in range(count)]


def test_faults_captures_and_counters_have_frames(tmp_path: Path) -> None:
    def body() -> None:
        one, two = gso.ends()
        rules = [
            FaultRule(port=1, direction="in", packets=(2, 5), drop=1),
            FaultRule(port=2, direction="out", packets=(1,), duplicate=1),
        ]
        routed = engine(pcap=tmp_path, faults=rules, counts=tmp_path / "counts")
        frames = datagrams(8)
        one.send(gso.coalesced(frames))
        got = [frame for packet in received(two, 7) for frame in packet]
        assert [frame[BODY] for frame in got] == [0, 0, 2, 3, 5, 6, 7]
        routed.stop()
        assert pcap_packets(tmp_path / "s1_in.pcap") == frames
        assert len(pcap_packets(tmp_path / "s2_out.pcap")) == 7
        ports, size = routed.stats().ports, len(frames[0])
        assert (ports[1].received_packets, ports[1].received_bytes) == (8, 8 * size)
        assert (ports[2].sent_packets, ports[2].sent_bytes) == (7, 7 * size)
        counts = struct.unpack("=12Q", (tmp_path / "counts").read_bytes()[: 3 * 32])
        assert counts[4:] == (8, 8 * size, 0, 0, 0, 0, 7, 7 * size)

    alone(body)


def test_wrong_checksum_leaves_unchanged() -> None:
    """The kernel would write the right checksum into a coalesced frame."""

    def body() -> None:
        one, two = gso.ends()
        routed, frames = engine(), datagrams(9)
        frames[4] = frames[4][: UDP + 6] + b"\x12\x34" + frames[4][BODY:]
        send_together(routed, one, frames)
        got = received(two, 9)
        assert [len(packet) for packet in got][-3:] in ([4, 1, 4], [3, 1, 4])
        assert [frame[UDP:] for packet in got for frame in packet] == [frame[UDP:] for frame in frames]
        routed.stop()

    alone(body)


def test_checksum_of_all_ones_leaves_unchanged() -> None:
    """IPv4's checksum may be 0xffff instead of 0. The kernel would write 0 into a coalesced frame."""

    def body() -> None:
        one, two = gso.ends()
        routed, frame = engine(passing(BODY)), datagrams(1)[0]
        total = len(frame) - IP
        numbered = (gso.with_ip(frame, total, number) for number in range(65536))
        zero = next(one for one in numbered if not any(one[IP + 10 : IP + 12]))
        ones = zero[: IP + 10] + b"\xff\xff" + zero[IP + 12 :]
        send_together(routed, one, [ones] * 8)
        assert [frame for packet in received(two, 8) for frame in packet] == [ones] * 8
        routed.stop()

    alone(body)


@pytest.mark.parametrize("header_bytes", [14, 34, 41, 42, 60])
def test_frames_are_coalesced_however_many_headers_the_program_parses(header_bytes: int) -> None:
    """The frames leave in parts: the header that the program parses, and the rest. An odd part leaves alone."""

    def body() -> None:
        one, two = gso.ends()
        routed, frames = engine(passing(header_bytes)), datagrams(9, 999)
        send_together(routed, one, frames)
        got = received(two, 9)
        assert [frame for packet in got for frame in packet] == frames
        assert (len(got) <= 2) == (header_bytes != 41)
        routed.stop()

    alone(body)


@pytest.mark.parametrize(("most", "bypass"), [(0, False), (COALESCED_BYTES, True)])
def test_coalesced_packets_come_in_if_frames_leave_singly(most: int, bypass: bool) -> None:
    def body() -> None:
        one, two = gso.ends()
        routed, frames = engine(gso=most, qdisc_bypass=bypass), datagrams(8)
        one.send(gso.coalesced(frames))
        got = received(two, 8)
        assert [len(packet) for packet in got] == [1] * 8
        assert [packet[0][UDP:] for packet in got] == [frame[UDP:] for frame in frames]
        routed.stop()

    alone(body)


def test_datagrams_that_the_kernel_coalesced_as_a_list_are_segmented() -> None:
    """An interface with GRO by lists (`rx-gro-list`) coalesces what it receives, and says no place of a checksum."""

    def body() -> None:
        one, two = gso.ends()
        gso.set_feature("h1", "tx-checksum-ip-generic", False)  # so that the frames of a packet come one by one
        for name in ("rx-gro", "rx-gro-list"):
            gso.set_feature("s1", name, True)
        routed, frames = engine(), datagrams(8)
        one.send(gso.coalesced(frames))
        got = [frame for packet in received(two, 8) for frame in packet]
        assert [frame[UDP:] for frame in got] == [frame[UDP:] for frame in frames]
        routed.stop()

    alone(body)


def test_counters_of_a_file_go_on_after_a_restart(tmp_path: Path) -> None:
    def body() -> None:
        one, _ = links(2)
        for number in (1, 2):
            routed = engine(counts=tmp_path / "counts")
            one.send(datagram(b"counted"))
            until(lambda: struct.unpack_from("=Q", (tmp_path / "counts").read_bytes(), 32)[0] == number)  # noqa: B023
            routed.stop()

    alone(body)


@pytest.mark.parametrize("coalesced", [False, True])
def test_frames_leave_alone_without_gso_and_from_a_small_bucket(coalesced: bool) -> None:
    """The kernel segments a packet that is larger than the bucket of a shaped link."""

    def body() -> None:
        one, two = links(2)[0], gso.socket_of("h2")
        if coalesced:
            subprocess.run(
                ["tc", "qdisc", "add", "dev", "s2", "root", "tbf", "rate", "50mbit", "burst", "3000", "limit", "1m"],
                check=True,
            )
        routed = engine(gso=COALESCED_BYTES if coalesced else 0)
        frames = datagrams(30)
        for frame in frames:
            one.send(frame)
        got = received(two, 30)
        assert [len(packet) for packet in got] == [1] * 30
        assert [plain(packet[0])[BODY:] for packet in got] == [frame[BODY:] for frame in frames]
        routed.stop()

    alone(body)


def test_frames_that_are_longer_than_the_mtu_are_counted() -> None:
    def body() -> None:
        one, two = gso.ends()
        subprocess.run(["ip", "link", "set", "s2", "mtu", "1500"], check=True)
        routed = engine()
        one.send(gso.coalesced(datagrams(4, 3000)))
        one.send(gso.coalesced(datagrams(4)))
        assert [frame[BODY] for packet in received(two, 4) for frame in packet] == [0, 1, 2, 3]
        assert routed.stats().drops["sent too long"] == 4
        routed.stop()

    alone(body)


@pytest.mark.parametrize("most", [-1, COALESCED_BYTES + 1])
def test_size_that_a_coalesced_packet_cannot_have_is_refused(most: int) -> None:
    with pytest.raises(SwitchError, match=f"coalesced frames must have 0 to {COALESCED_BYTES} bytes, got {most}"):
        Engine({}, gso=most)
