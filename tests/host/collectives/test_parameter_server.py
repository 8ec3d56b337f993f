"""The parameter server answers valid packets, drops others with a reason, and has a command."""

import contextlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kofn_common.wire import packet as wire
from kofn_common.wire.packet import Kind, KofnHeader
from kofn_host.collectives.parameter_server import ParameterServer, place_of
from kofn_host.kernels.lanes import pack, unpack
from kofn_host.protocol.slots import NativeSlots
from kofn_host.transport.udp import may_join, udp_socket
from tests.host.teams import served
from tests.waiting import PATIENCE_S

PORT = 19301
OWN = "127.0.94.254"
ADDRESSES = ["127.0.94.1", "127.0.94.2", "127.0.94.3"]
UDP_SEGMENT, UDP_GRO = 103, 104  # linux/udp.h; Python has no names for them
VALUES = pack(np.arange(64, dtype=np.int32), 32)


class Table:
    """A server that the test calls, and its workers' sockets."""

    def __init__(self, k: int) -> None:
        self.sockets = [udp_socket(own, PORT) for own in [*ADDRESSES, OWN]]
        self.rules = NativeSlots.open(workers=3, k=k, slots=16)
        self.rules.generation = 5
        self.server = ParameterServer(self.sockets[-1], self.rules, 7, ADDRESSES)

    def take(self, sender: int = 0, values: bytes = VALUES, **fields: Any) -> dict[int, tuple[KofnHeader, bytes]]:
        """Hand a packet to the server and return its answers by rank."""
        header = KofnHeader(**{"job": 7, "worker": sender, "generation": 5, "scale": 3} | fields)
        return self.hear(wire.encode(header, values), sender)

    def hear(self, datagram: bytes | bytearray, sender: int = 0) -> dict[int, tuple[KofnHeader, bytes]]:
        self.sockets[sender].sendto(datagram, (OWN, PORT))
        assert self.server.receive() == 1
        return self.answers()

    def answers(self) -> dict[int, tuple[KofnHeader, bytes]]:
        heard = {}
        for rank in range(3):
            try:
                datagram = self.sockets[rank].recv(9000, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            heard[rank] = wire.decode_header(datagram), datagram[wire.HEADER_BYTES :]
        return heard


@pytest.fixture
def table() -> Iterator[Table]:
    table = Table(k=2)
    yield table
    for opened in table.sockets:
        opened.close()


def test_server_adopts_each_later_generation_of_a_workers_packet(table: Table) -> None:
    """A stranger's packet does not count. Earlier generations are dropped, and those far in the future."""
    table.take(0, generation=13, job=8)
    table.take(0, generation=19, worker=1)
    table.take(0, generation=2**32 - 1)
    assert table.take(0, generation=6) == {}
    assert table.take(1, generation=5) == {}
    assert sorted(table.take(1, generation=6)) == [0, 1, 2]
    assert table.take(0, generation=8) == {}
    assert table.take(1, generation=6) == {}
    assert table.server.counts.dropped == {"UNKNOWN_JOB": 1, "WRONG_PORT": 1, "OLD_GENERATION": 3}


def test_result_goes_to_all_workers_and_a_late_answer_to_one(table: Table) -> None:
    assert table.take(0) == {}
    answers = table.take(2)
    assert sorted(answers) == [0, 1, 2]
    for rank, (header, values) in answers.items():
        assert (header.kind, header.worker, header.members, header.count) == (Kind.RESULT, rank, 0b101, 2)
        assert np.array_equal(unpack(values, 32), 2 * np.arange(64))
    ((rank, (late, values)),) = table.take(1).items()
    assert (rank, late.kind, late.members) == (1, Kind.LATE, 0b101)
    assert np.array_equal(unpack(values, 32), 2 * np.arange(64))
    assert (table.server.counts.received, table.server.counts.sent, table.server.counts.dropped) == (3, 4, {})


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("UNKNOWN_JOB", {"job": 8}),
        ("BAD_KIND", {"kind": Kind.RESULT}),
        ("BAD_LENGTH", {"words": 0, "values": b""}),
        ("BAD_ITERATION", {"iteration": 0}),
        ("WRONG_PORT", {"worker": 1}),
        ("WRONG_PORT", {"worker": 3}),
        ("BAD_COUNT", {"count": 2}),
        ("BAD_COUNT", {"weight": 0}),
        ("BAD_COUNT", {"k": 1}),
        ("BAD_COUNT", {"weight": 1023 * 256 + 1}),
        ("BAD_COUNT", {"weight": 1023 * 256 + 1, "count": 0}),
        ("BAD_COUNT", {"kind": Kind.PULL, "count": 0}),
        ("BAD_PART", {"part": 4}),
        ("BAD_PART", {"kind": Kind.PULL, "part": 255}),
        ("OLD_GENERATION", {"generation": 4}),
        ("UNKNOWN_LANES", {"lanes": 5}),
        ("UNKNOWN_RECIPIENT", {"recipient": 3}),
        ("MALFORMED", {"words": 2}),
        ("MALFORMED", {"version": 2}),
    ],
)
def test_packets_that_a_switch_would_drop_are_dropped(table: Table, reason: str, fields: dict[str, Any]) -> None:
    table.take(2)
    assert table.take(0, **fields) == {}, "a malformed packet must not complete the block"
    assert table.server.counts.dropped == {reason: 1}
    assert sorted(table.take(0)) == [0, 1, 2], "the server continues"
    assert f"; dropped: 1 {reason}" in str(table.server.counts)


def test_damaged_packet_is_dropped(table: Table) -> None:
    packet = bytearray(wire.encode(KofnHeader(job=7, generation=5), VALUES))
    packet[-1] ^= 4
    assert table.hear(packet) == {}
    assert table.server.counts.dropped == {"BAD_CHECKSUM": 1}


def test_packets_that_arrive_together_are_answered_together(table: Table) -> None:
    for block in (3, 4):
        for sender in (0, 1):
            header = KofnHeader(job=7, worker=sender, generation=5, block=block, slot=block)
            table.sockets[sender].sendto(wire.encode(header, VALUES), (OWN, PORT))
    table.sockets[0].sendto(b"nothing", (OWN, PORT))
    assert table.server.receive() == 5
    for worker in table.sockets[:3]:
        assert [wire.decode_header(worker.recv(9000)).block for _ in range(2)] == [3, 4]
    assert (table.server.counts.sent, table.server.counts.dropped) == (6, {"MALFORMED": 1})


def test_answers_to_one_worker_are_coalesced(table: Table) -> None:
    packet_bytes = wire.HEADER_BYTES + len(VALUES)
    for worker in table.sockets[:3]:
        worker.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    for block in range(1, 9):
        for sender in (0, 2):
            header = KofnHeader(job=7, worker=sender, generation=5, block=block, slot=block)
            table.sockets[sender].sendto(wire.encode(header, VALUES), (OWN, PORT))
    assert table.server.receive() == 16
    for worker in table.sockets[:3]:
        heard = worker.recv(1 << 16)
        assert len(heard) == 8 * packet_bytes
        starts = [heard[at : at + packet_bytes] for at in range(0, len(heard), packet_bytes)]
        assert [wire.decode_header(start).block for start in starts] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_server_does_not_wait_while_received_packets_are_left(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three coalesced messages have more packets than one batch."""
    server, worker, receive = table.server, table.sockets[0], table.server.receive
    server.receive()  # from now on the kernel may coalesce
    assert may_join(worker)
    packets = [wire.encode(KofnHeader(job=7, generation=5, block=block), VALUES) for block in range(180)]
    size = struct.pack("H", len(packets[0]))
    for begin in range(0, 180, 60):
        together = b"".join(packets[begin : begin + 60])
        worker.sendmsg([together], [(socket.IPPROTO_UDP, UDP_SEGMENT, size)], 0, (OWN, PORT))

    def received() -> int:
        count = receive()
        if server.counts.received == len(packets):
            sys.exit()  # as the command's signal handler does
        return count

    def serve() -> None:
        with contextlib.suppress(SystemExit):
            server.serve()

    monkeypatch.setattr(server, "receive", received)
    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    serving.join(PATIENCE_S)
    assert server.counts.received == len(packets)


def test_pull_needs_no_weight(table: Table) -> None:
    table.take(0)
    table.take(2)
    assert sorted(table.take(1, kind=Kind.PULL, weight=0)) == [1]


def test_late_gradient_is_merged_beside_its_workers_own(table: Table) -> None:
    """It is not counted, is added once, and only where room for k counted contributions remains."""
    for _ in range(2):
        assert table.take(0, count=0, part=1, weight=100) == {}
    assert table.take(0, weight=300) == {}
    assert table.take(1, count=0, part=1) == {}, "2 of 3 contributions must count, and one is merged already"
    answers = table.take(2, weight=1023 * 256)
    assert sorted(answers) == [0, 1, 2]
    header, values = answers[1]
    assert (header.count, header.weight, header.members) == (2, 400 + 1023 * 256, 0b101 | 1 << 64)
    assert np.array_equal(unpack(values, 32), 3 * np.arange(64))


def test_send_failures_are_counted(table: Table) -> None:
    table.server._places[1] = place_of("255.255.255.255")  # fails, since the socket does not permit broadcast
    table.take(0)
    assert sorted(table.take(2)) == [0, 2]
    assert (table.server.counts.sent, table.server.counts.send_failures) == (2, 1)


@pytest.mark.slow
def test_command_serves_until_it_is_ended() -> None:
    process = served(OWN, 7, ADDRESSES, 1)
    with udp_socket(ADDRESSES[1], wire.FORWARDED_PORT) as worker:
        worker.sendto(b"nothing", (OWN, wire.FORWARDED_PORT))
        worker.settimeout(20)
        for sender in (1, 1):
            worker.sendto(wire.encode(KofnHeader(job=7, worker=sender), VALUES), (OWN, wire.FORWARDED_PORT))
        kinds = [wire.decode_header(worker.recv(9000)).kind for _ in range(2)]
    assert kinds == [Kind.RESULT, Kind.LATE]
    process.terminate()
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert said == "3 packets in, 4 out, 0 could not be sent; dropped: 1 MALFORMED\n"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["--k", "2"], "--k must be 1 to 1, the number of workers, got 2"),
        (["--address", "192.0.2.1"], "192.0.2.1:19279: [Errno 99] Cannot assign requested address"),
    ],
)
def test_command_names_invalid_arguments(given: list[str], error: str) -> None:
    command = [
        sys.executable,
        "-m",
        "kofn_host.collectives.parameter_server",
        "--address",
        OWN,
        "--worker",
        ADDRESSES[0],
        *given,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert error in ended.stderr
