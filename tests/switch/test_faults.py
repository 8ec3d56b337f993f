"""Injected faults at real ports have the documented rates, delays and reproducibility
(switch/kofn_switch/engine/faults.py and host/kofn_host/transport/fault_injection.py).
"""

import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.engine.faults import FaultRule, parse_rule
from kofn_switch.errors import FaultError
from kofn_switch.state.entries import FaultCounts
from tests.switch.test_ports import PROGRAM, alone, counted, links
from tests.switch.test_rules import LENGTH, request
from tests.waiting import until

NONE = FaultCounts(dropped=0, duplicated=0, corrupted=0, delayed=0, reordered=0)
QUIET_S = 0.15


class Lab:
    """Two hosts at ports 1 and 2 of a switch with faults; the wire carries the test's frames only."""

    def __init__(self, *rules: str, seed: int = 1, udp_port: int = 0) -> None:
        self.one, self.two = self._hosts()
        parsed = tuple(map(parse_rule, rules))
        self.engine = Engine({1: "s1", 2: "s2"}, faults=parsed, fault_seed=seed, fault_udp_port=udp_port)
        self.engine.load(PROGRAM)
        self.engine.start()
        self._sent = 0

    @staticmethod
    def _hosts() -> list[socket.socket]:
        for name in ("s1", "s2"):
            subprocess.run(["ip", "link", "del", name], check=False, capture_output=True)
        return links(2)

    def send(self, numbers: Iterable[int], size: int = 100) -> None:
        """Send frames from port 1 to port 2."""
        for number in numbers:
            self.send_frame(request(0x23, 2, rest=number.to_bytes(4, "big") + bytes(size)))

    def send_frame(self, frame: bytes) -> None:
        self.one.send(frame)
        self._sent += 1

    def until_taken(self) -> None:
        """Wait until the switch has taken all frames from port 1."""
        until(lambda: self.engine.stats().ports[1].received_packets >= self._sent)

    def _left(self) -> int:
        """Return how many frames leave the switch for those that it has taken; it has counted each frame's faults."""
        stats = self.engine.stats()
        faults = (stats.ports[1].faults_in, stats.ports[2].faults_out)
        changed = sum(count.duplicated - count.dropped for count in faults)
        return stats.ports[1].received_packets + changed - stats.drops["delay queue full"]

    def frames(self) -> list[tuple[float, bytes]]:
        """Return (time, frame) of all frames at port 2's host: those that the faults leave, until none comes for a
        while."""
        got = list[tuple[float, bytes]]()
        self.two.settimeout(QUIET_S)

        def quiet() -> bool:
            try:
                while True:
                    frame = self.two.recv(65536)
                    got.append((time.monotonic(), frame))
            except TimeoutError:
                return len(got) >= self._left()

        self.until_taken()
        try:
            until(quiet)
        except AssertionError:
            raise AssertionError(f"{len(got)} of {self._left()}; {self.engine.stats()}; {counted()}") from None
        return got

    def numbers(self) -> list[int]:
        return [int.from_bytes(frame[LENGTH : LENGTH + 4], "big") for _, frame in self.frames()]

    def end(self) -> None:
        self.engine.stop()
        self.one.close()
        self.two.close()


def fates(*rules: str, count: int, seed: int = 1) -> list[int]:
    lab = Lab(*rules, seed=seed)
    lab.send(range(count))
    got = lab.numbers()
    lab.end()
    return got


def in_network(body: Callable[[], None]) -> Callable[[], None]:
    def test() -> None:
        alone(body)

    test.__name__ = body.__name__
    return pytest.mark.root(test)


@in_network
def test_rates_are_the_configured_ones_and_counted() -> None:
    lab = Lab("port=2,direction=out,drop=0.1,duplicate=0.2")
    lab.send(range(3000))
    copies = Counter(lab.numbers())
    counts = lab.engine.stats().ports[2].faults_out
    assert (3000 - len(copies)) / 3000 == pytest.approx(0.1, abs=0.025)
    assert list(copies.values()).count(2) / 3000 == pytest.approx(0.18, abs=0.03)
    assert counts.dropped == 3000 - len(copies)
    assert counts.duplicated == list(copies.values()).count(2)
    assert lab.engine.stats().ports[2].faults_in == NONE


@in_network
def test_same_seed_decides_the_same() -> None:
    first = fates("port=1,direction=in,drop=0.3", count=300)
    assert fates("port=1,direction=in,drop=0.3", count=300) == first
    assert fates("port=1,direction=in,drop=0.3", count=300, seed=2) != first
    assert fates("port=2,direction=out,drop=0.3", count=300) != first, (
        "each port and direction must draw its own faults"
    )


@in_network
def test_corruption_flips_one_bit_anywhere() -> None:
    lab = Lab("port=2,direction=out,corrupt=0.5")
    lab.send(range(1000), size=20)
    differences = []
    for number, (_, frame) in enumerate(lab.frames()):
        sent = request(0x23, 3, rest=number.to_bytes(4, "big") + bytes(20))
        differences.append(int.from_bytes(frame, "big") ^ int.from_bytes(sent, "big"))
    assert len(differences) == 1000
    assert Counter(one.bit_count() for one in differences)[1] == pytest.approx(500, abs=60)
    assert {one.bit_count() for one in differences} == {0, 1}
    assert len({one for one in differences if one}) > 250  # of 392 places
    assert lab.engine.stats().ports[2].faults_out.corrupted == sum(one > 0 for one in differences)


@in_network
def test_delayed_frames_arrive_later_and_in_order() -> None:
    def first_s() -> float:
        lab = Lab("port=1,direction=in,delay-ms=40", "port=2,delay-ms=30")
        begun = time.monotonic()
        lab.send(range(200))
        got = lab.frames()
        lab.end()
        assert len(got) == 200
        assert got[0][0] - begun >= 0.07
        assert [frame[LENGTH + 3] for _, frame in got] == list(range(200))
        return got[0][0] - begun

    until(lambda: first_s() < 0.3)  # a busy machine can only make it later


@in_network
def test_jitter_reorders_frames() -> None:
    got = fates("port=1,direction=in,jitter-ms=20", count=200)
    assert sorted(got) == list(range(200))
    assert got != sorted(got)


@in_network
def test_reordered_frame_arrives_after_the_next_one() -> None:
    """On a busy machine, the next frame may come after the 20 ms for which a frame is held back."""
    until(lambda: fates("port=1,direction=in,packets=2,reorder=1", count=5) == [0, 2, 1, 3, 4])
    until(lambda: fates("port=2,direction=out,packets=2,reorder=1", "port=2,delay-ms=5", count=5) == [0, 2, 1, 3, 4])
    until(lambda: fates("port=2,direction=out,reorder=1", count=5) == [1, 0, 3, 2, 4])


@in_network
def test_reordered_frame_does_not_wait_for_ever() -> None:
    def held_s() -> float:
        lab = Lab("port=1,direction=in,reorder=1")
        begun = time.monotonic()
        lab.send([7])
        ((when, _),) = lab.frames()
        lab.end()
        assert when - begun >= 0.02
        return when - begun

    until(lambda: held_s() < 0.2)  # a busy machine can only make it later


@in_network
def test_rules_apply_to_their_direction_and_time() -> None:
    assert fates("port=1,direction=in,packets=3+4,drop=1", count=6) == [0, 1, 4, 5]
    assert fates("port=1,direction=in,packets=3,duplicate=1", count=4) == [0, 1, 2, 2, 3]
    assert fates("port=1,direction=out,drop=1", "port=2,direction=in,drop=1", count=3) == [0, 1, 2]
    for times, arrived in (("from-s=0.3,until-s=600", [0]), ("from-s=0.1,until-s=0.3", [0, 1])):
        lab = Lab(f"port=1,direction=in,drop=1,{times}")
        lab.send([0])
        lab.until_taken()
        time.sleep(0.4)
        lab.send([1])
        assert lab.numbers() == arrived
        lab.end()


@in_network
def test_faults_for_one_udp_port_leave_other_traffic_alone() -> None:
    lab = Lab("port=1,direction=in,drop=1,packets=2+3", "port=2,delay-ms=1000", udp_port=19278)
    ipv4_udp = b"\0\0\0\x08\0\x45" + bytes(8) + b"\x11\0"  # the program's 128-bit field, as if Ethernet were before it
    for number in range(8):
        port = 19278 if number % 2 else 19279
        rest = number.to_bytes(4, "big") + bytes(7) + port.to_bytes(2, "big") + bytes(9)
        lab.send_frame(request(0x23, 2, wide=int.from_bytes(ipv4_udp, "big"), rest=rest))
    assert lab.numbers() == [0, 2, 4, 6, 1, 7], (
        "packets without a fault must arrive at once, delayed packets later, without the dropped ones"
    )


@in_network
def test_delay_queue_is_bounded() -> None:
    for delay_s in (1, 5, 25):
        lab = Lab(f"port=1,direction=in,delay-ms={delay_s}000")
        begun = time.monotonic()
        lab.send(range(9000), size=0)
        lab.until_taken()
        if time.monotonic() - begun < delay_s:  # on a busy machine the first frames may leave before the last is taken
            break
        lab.end()
    got = lab.numbers()
    assert len(got) == 8192
    assert got == list(range(9000 - 8192, 9000)), "the oldest delayed packets must be dropped"
    assert lab.engine.stats().drops["delay queue full"] == 9000 - 8192
    lab.end()
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(8):
        lab = Lab("port=1,direction=in,delay-ms=60000")
        lab.send(range(2000), size=8000)
        while lab.engine.stats().ports[1].faults_in.delayed < 2000:
            time.sleep(0.01)
        lab.end()
        del lab
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun) / 1024
    assert grown_mib < 60, "122 MiB of delayed packets must not stay in memory"


@in_network
def test_packet_of_the_controller_is_delayed_correctly() -> None:
    lab = Lab("port=2,direction=out,delay-ms=20")
    lab.engine.stop()
    lab.engine = Engine({1: "s1", 2: "s2"}, cpu_port=255, faults=[parse_rule("port=2,delay-ms=20")])
    lab.engine.load(PROGRAM)
    lab.engine.start()
    time.sleep(0.1)  # until the packet thread sleeps
    lab.engine.send(request(0x23, 2, rest=bytes(4)))
    until(lambda: lab.numbers() == [0])


@pytest.mark.root
def test_switch_reports_injected_faults_at_its_end(tmp_path: Path) -> None:
    def body() -> None:
        one, _ = Lab._hosts()
        options = ["--no-p4", "-i", "1@s1", "--fault", "port=1,direction=in,drop=1", "--pcap", str(tmp_path)]
        command = [sys.executable, "-m", "kofn_switch", *options, "--", "--grpc-server-addr", "127.0.0.1:50051"]
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "listening" in process.stdout.readline()
            for _ in range(3):
                one.send(bytes(60))
            until(lambda: (tmp_path / "s1_in.pcap").stat().st_size == 24 + 3 * (16 + 60))
            process.send_signal(signal.SIGTERM)
            said = process.stdout.read().splitlines()
        assert said[0] == "injected at port 1, in: 3 dropped, 0 duplicated, 0 corrupted, 0 delayed, 0 reordered"

    alone(body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drop=0.1", "port must be given"),
        ("port=1", "one or more of drop, duplicate, corrupt, reorder, delay-ms, jitter-ms must be above 0, got none"),
        ("port=1,loss=0.1", "KEY=VALUE must have one of the keys port, direction, drop"),
        ("port=1,drop", "KEY=VALUE must have one of the keys"),
        ("port=1,drop=1.5", "drop must be 0 to 1, got '1.5'"),
        ("port=1,drop=nan", "drop must be 0 to 1, got 'nan'"),
        ("port=one,drop=1", "port must be a port number, got 'one'"),
        ("port=1,port=2,drop=1", "port must be given once, got two"),
        ("port=1,drop=1,direction=send", "direction must be in, out or both, got 'send'"),
        ("port=1,delay-ms=-1", "delay-ms must be 0 to 3600000, got '-1'"),
        ("port=1,drop=1,packets=0", "packets must be one or more numbers from 1, as in 3[+]4, got '0'"),
        ("port=1,drop=1,from-s=2,until-s=1", "until-s must be more than from-s = 2, got 1"),
    ],
)
def test_impossible_rule_is_refused(text: str, message: str) -> None:
    with pytest.raises(FaultError, match=message) as refused:
        parse_rule(text)
    assert str(refused.value).startswith(f"--fault {text}: ")


def test_rule_for_a_missing_port_is_refused() -> None:
    with pytest.raises(FaultError, match=r"fault port=3,drop=0\.5: there is no port 3; there are 1, 2"):
        Engine({1: "s1", 2: "s2"}, faults=[FaultRule(port=3, drop=0.5)])


def test_rule_is_parsed_from_its_own_text() -> None:
    rule = FaultRule(port=3, direction="in", drop=0.1, corrupt=1e-05, delay_ms=2.5, until_s=5.0, packets=(3, 40))
    assert str(rule) == "port=3,direction=in,drop=0.1,corrupt=1e-05,delay-ms=2.5,until-s=5.0,packets=3+40"
    assert parse_rule(str(rule)) == rule
