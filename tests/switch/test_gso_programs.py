"""The suite's programs send the same frames whether datagrams arrive coalesced or every frame is processed alone."""

import ctypes
import random
import socket
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kofn_common.gso import gso_works
from kofn_switch.engine.engine import Engine
from kofn_switch.native import runtime
from tests.switch import gso
from tests.switch.suite.build import PROGRAMS
from tests.switch.suite.runner import Run
from tests.switch.suite.stf import Check, Expect, ExpectDigest, Packet, parse
from tests.switch.suite.targets import Injected
from tests.switch.test_gso import foreign, plain, received, train
from tests.switch.test_ports import alone, links
from tests.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(not gso_works(), reason="the kernel coalesces no frames here")]

PORTS = range(6)  # the ports that the scripts name
MTU = 1500
SHORTEST = 14  # bytes of a frame that an interface takes
PACKETS = 12  # random packets for each program, of one or more frames


@dataclass(kw_only=True)
class Pair:
    """A program on two switches: `wired` has interfaces, whose other ends are `hosts`; `single` has none."""

    wired: Engine
    single: Engine
    hosts: list[socket.socket]
    sent: int = 0
    frames: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # received by each host
    coalesced: int = 0  # packets that hosts received

    def exchange(self, port: int, packets: list[list[bytes]]) -> None:
        """Let packets of one or more frames arrive at a port, and compare the frames that leave."""
        expected: dict[int, list[bytes]] = defaultdict(list)
        for frame in (frame for frames in packets for frame in frames):
            for to, out in self.single.inject(port, frame):
                expected[to].append(out)
        core = ctypes.c_void_p(self.wired._core)
        runtime().core_lock(core)  # so that the packets are processed together
        for frames in packets:
            self.hosts[port].send(gso.coalesced(frames) if len(frames) > 1 else gso.alone(frames[0]))
        runtime().core_unlock(core)
        self.sent += sum(map(len, packets))
        until(lambda: sum(one.received_packets for one in self.wired.stats().ports.values()) == self.sent)
        runtime().core_lock(core)  # until the packets have left
        runtime().core_unlock(core)
        for to, host in enumerate(self.hosts):
            wanted = [plain(frame) for frame in expected[to] if SHORTEST <= len(frame) <= MTU + SHORTEST]
            found = received(host, self.wired.stats().ports[to].sent_packets - self.frames[to])
            assert [plain(frame) for packet in found for frame in packet] == wanted
            self.frames[to] += len(wanted)
            self.coalesced += sum(len(packet) > 1 for packet in found)


def random_packets(rng: random.Random) -> Iterator[list[bytes]]:
    for _ in range(PACKETS // 2):
        yield train(rng, MTU)
        yield [foreign(rng, MTU)]


def run(script: Path, hosts: list[socket.socket]) -> int:
    """Run a script's statements and packets, then random packets. Return how many packets left coalesced."""
    rng = random.Random(script.stem)
    pair = Pair(wired=Engine({port: f"s{port + 1}" for port in PORTS}), single=Engine({}), hosts=hosts)
    runs = [Run(Injected(control=engine, ports=frozenset())) for engine in (pair.wired, pair.single)]
    for engine in (pair.wired, pair.single):
        engine.load(script.with_suffix(".json").read_bytes())
    pair.wired.start()
    for statement in parse(script.read_text()):
        match statement:
            case Packet():
                if len(statement.data) >= SHORTEST:
                    pair.exchange(statement.port, [[statement.data]])
            case Expect() | ExpectDigest() | Check():
                pass
            case _:
                for one in runs:
                    one.execute([statement])
    for port in PORTS:
        pair.exchange(port, list(random_packets(rng)))
    for array in pair.single.program.registers:
        assert pair.wired.registers(array.name) == pair.single.registers(array.name)
    pair.wired.stop()
    return pair.coalesced


def test_programs_send_the_frames_of_coalesced_packets_as_single_ones() -> None:
    def body() -> None:
        for opened in links(len(PORTS), MTU):
            opened.close()
        hosts = [gso.socket_of(f"h{port + 1}") for port in PORTS]
        coalesced = {script.stem: run(script, hosts) for script in sorted(PROGRAMS.glob("*.stf"))}
        assert sum(map(bool, coalesced.values())) >= 3, coalesced

    alone(body)
