"""The queues before egress: rates, depths and priorities, and interfaces that are slow or full."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.utils import RawPcapReader

from kofn_switch.engine.engine import Engine
from tests.switch.test_copies import PRIORITY, packet
from tests.switch.test_ports import alone, links
from tests.waiting import until

PROGRAMS = Path(__file__).parent / "suite" / "programs"
DEPTHS, OUT = 6, 2  # op of metadata.p4: egress writes enq_qdepth + deq_qdepth; the port of all outputs
RATE_PPS = 4
"""So low that on a busy machine, too, ten packets come before the second leaves."""


def ask(op: int, length: int = 14) -> bytes:
    return bytes([op]) + bytes(length - 1)


def depths(frame: bytes) -> int:
    return int.from_bytes(frame[6:10], "big")


def sent(folder: Path) -> list[tuple[float, bytes]]:
    """Return when each frame left, with its bytes."""
    with RawPcapReader(str(folder / "b_out.pcap")) as reader:
        return [(about.sec + about.usec / 1e6, bytes(frame)) for frame, about in reader]


@contextlib.contextmanager
def running(folder: Path, program: str, priorities: int = 1) -> Iterator[Engine]:
    engine = Engine({1: f"{folder}/a", OUT: f"{folder}/b"}, files=True, priority_queues=priorities)
    engine.load((PROGRAMS / program).read_bytes())
    engine.start()
    yield engine
    engine.stop()


def wait_for(folder: Path, count: int) -> list[tuple[float, bytes]]:
    until(lambda: len(sent(folder)) >= count)
    return sent(folder)


def test_packets_do_not_wait_without_a_limit(tmp_path: Path) -> None:
    with running(tmp_path, "metadata.json") as engine:
        for _ in range(200):
            engine.receive(1, ask(DEPTHS))
        assert [depths(frame) for _, frame in sent(tmp_path)] == [0] * 200


def test_rate_spaces_packets_and_depth_limits_waiting_ones(tmp_path: Path) -> None:
    with running(tmp_path, "metadata.json") as engine:
        engine.set_queue(OUT, depth=4, rate_pps=RATE_PPS)
        for _ in range(10):
            engine.receive(1, ask(DEPTHS))
        found = wait_for(tmp_path, 5)
        assert [depths(frame) for _, frame in found] == [0, 3, 3, 3, 3]  # waiting packets before it and behind it
        # four times the rate's inverse, if the first was not delayed itself
        assert found[-1][0] - found[0][0] > 2 / RATE_PPS
        assert engine.stats().drops["queue full"] == 5


def test_each_priority_has_its_own_queue(tmp_path: Path) -> None:
    with running(tmp_path, "copies.json", priorities=2) as engine:
        engine.set_queue(priority=1, depth=0)
        engine.receive(1, packet(0))
        assert engine.stats().drops["queue full"] == 0
        engine.receive(1, packet(PRIORITY))
        assert engine.stats().drops["queue full"] == 1


def test_new_program_finds_empty_queues(tmp_path: Path) -> None:
    with running(tmp_path, "metadata.json") as engine:
        engine.set_queue(OUT, rate_pps=1)
        for _ in range(3):
            engine.receive(1, ask(DEPTHS))
        engine.load((PROGRAMS / "metadata.json").read_bytes())
        engine.set_queue(OUT, rate_pps=0)
        engine.receive(1, ask(DEPTHS))
        assert [depths(frame) for _, frame in sent(tmp_path)] == [0, 0]


@pytest.mark.root
def test_packets_wait_where_the_interface_is_slow() -> None:
    def body() -> None:
        first, second = links(2)
        shape = "tc qdisc add dev s2 root tbf rate 8mbit burst 3000 limit 10000000"
        subprocess.run(shape.split(), check=True)
        engine = Engine({1: "s1", OUT: "s2"})
        engine.load((PROGRAMS / "metadata.json").read_bytes())
        engine.start()
        second.settimeout(1)
        seen = list[int]()

        def waited() -> bool:
            for _ in range(250):  # on a busy machine the switch's socket drops some
                first.send(ask(DEPTHS, 1400))
            with contextlib.suppress(TimeoutError):
                while True:
                    frame = second.recv(65536)
                    if len(frame) >= 1400:  # the kernel's packets are shorter
                        seen.append(depths(frame))
            return max(seen, default=0) > 32

        until(waited)  # on a busy machine the packets may come too slowly
        engine.stop()
        assert seen[0] == 0
        assert max(seen) < 130, seen

    alone(body)
