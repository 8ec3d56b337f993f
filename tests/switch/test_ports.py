"""The packet thread on real interfaces: veth pairs in a network namespace that ends with the test's process."""

import gc
import multiprocessing
import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scapy.utils import RawPcapReader

from kofn_switch.engine.engine import Engine
from kofn_switch.engine.faults import FaultRule
from kofn_switch.errors import PortError
from kofn_switch.state.entries import Replica
from tests.switch.test_rules import LENGTH, answer, request
from tests.waiting import until

pytestmark = pytest.mark.root
PROGRAM = (Path(__file__).parent / "programs" / "rules.json").read_bytes()
ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_AUXDATA, PACKET_IGNORE_OUTGOING = 263, 8, 23
SO_RCVBUFFORCE = 33
CLONE_NEWNET = 0x40000000
MTU = 9000


def alone(body: Callable[[], None]) -> None:
    """Run `body` in a separate process with its own network namespace."""

    def enter() -> None:
        gc.freeze()  # objects of other tests belong to threads that a fork does not have
        os.unshare(CLONE_NEWNET) if hasattr(os, "unshare") else _unshare()
        without_ipv6()
        body()

    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    process = multiprocessing.get_context("fork").Process(target=enter)
    process.start()
    process.join(240)
    assert process.exitcode == 0


def _unshare() -> None:
    import ctypes  # noqa: PLC0415 - before Python 3.12 there is no os.unshare

    assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0


def without_ipv6() -> None:
    """Turn IPv6 off, so that the kernel sends no packets on this namespace's interfaces."""
    for scope in ("all", "default"):
        Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")


def links(count: int, mtu: int = MTU) -> list[socket.socket]:
    """Create veth pairs s1-h1, s2-h2, ... and return sockets at the h ends."""
    for number in range(1, count + 1):
        pair = f"ip link add s{number} mtu {mtu} type veth peer name h{number} mtu {mtu}"
        for command in (pair, f"ip link set s{number} up", f"ip link set h{number} up"):
            subprocess.run(command.split(), check=True)
    until(lambda: are_up(2 * count))  # before, the kernel drops all that is sent
    return [host(f"h{number}") for number in range(1, count + 1)]


def are_up(interfaces: int) -> bool:
    """Return whether the kernel has noticed that both ends of each pair are up, and has activated their queues."""
    listed = subprocess.run(["ip", "-oneline", "link"], check=True, capture_output=True, text=True).stdout
    return listed.count(" state UP ") == interfaces


def host(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
    opened.bind((interface, ETH_P_ALL))
    opened.settimeout(60)
    return opened


def receive(opened: socket.socket) -> bytes:
    """Return the next packet."""
    try:
        return opened.recv(65536)
    except TimeoutError:
        raise AssertionError(f"no packet came; the kernel counted:\n{counted()}") from None


def counted() -> str:
    """Return what the kernel has counted at this namespace's interfaces, dropped packets included."""
    words = ["ip", "-s", "-s", "link"], ["tc", "-s", "qdisc"], ["cat", "/proc/net/softnet_stat"]
    return "\n".join(subprocess.run(each, check=True, capture_output=True, text=True).stdout for each in words)


def switch(ports: int, *, qdisc_bypass: bool = False, take_outgoing: bool = False) -> Engine:
    interfaces = {number: f"s{number}" for number in range(1, ports + 1)}
    engine = Engine(interfaces, cpu_port=255, qdisc_bypass=qdisc_bypass, take_outgoing=take_outgoing)
    engine.load(PROGRAM)
    engine.start()
    return engine


def test_packets_cross_the_switch() -> None:
    def body() -> None:
        one, two = links(2)
        engine = switch(2)
        for size in (0, 100, MTU - 100):
            one.send(request(0x23, 2, rest=bytes(size)))
            assert receive(two) == request(0x23, 3, rest=bytes(size))
        stats = engine.stats()
        assert stats.ports[2].sent_packets == 3
        assert stats.ports[1].received_packets >= 3
        assert stats.ports[2].sent_bytes == 3 * LENGTH + 100 + MTU - 100
        engine.stop()
        engine.stop()
        engine.start()
        one.send(request(0x23, 2))
        assert receive(two) == request(0x23, 3)

    alone(body)


@pytest.mark.parametrize("bypass", [False, True])
def test_burst_is_multicast_completely_and_in_order(bypass: bool) -> None:
    def body() -> None:
        one, two = links(2)
        engine = switch(2, qdisc_bypass=bypass)
        engine.set_group(5, [Replica(port=2, instance=number) for number in range(1500)])
        for number in range(3):
            one.send(request(0x20, 5, number, bytes(600)))
        for number in range(3):
            got = [answer(receive(two)) for _ in range(1500)]
            assert [copy.result & 0xFFFF for copy in got] == list(range(1500))
            assert {copy.wide for copy in got} == {number + 1}
            assert {copy.rest for copy in got} == {bytes(600)}
        assert engine.stats().ports[2].sent_packets == 4500

    alone(body)


@pytest.mark.parametrize("taken", [False, True])
def test_outgoing_packets_of_an_interface_are_taken_on_request(taken: bool) -> None:
    def body() -> None:
        one, two = links(2)
        engine = switch(2, take_outgoing=taken)
        host("s1").send(request(0x23, 2, rest=b"outgoing"))
        one.send(request(0x23, 2, rest=b"incoming"))
        heard = [answer(receive(two)).rest for _ in range(1 + taken)]
        assert heard == [b"outgoing", b"incoming"][1 - taken :]
        engine.stop()

    alone(body)


def test_vlan_tags_are_kept() -> None:
    def body() -> None:
        one, two = links(2)
        engine = switch(2)
        tagged = request(0x23, 2)[:12] + b"\x81\x00\x20\x07\x08\x00" + bytes(50)
        expected = engine.inject(1, tagged)
        one.send(tagged)
        two.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)  # a host gets the tag beside the packet
        data, ancillary = b"", list[Any]()
        while not data.startswith(b"\x23"):  # skips the kernel's packets
            data, ancillary, _, _ = two.recvmsg(65536, 256)
        assert len(expected[0][1]) == len(tagged)
        assert engine.stats().ports[2].sent_bytes == len(tagged)
        assert ancillary

    alone(body)


def pcap_packets(path: Path) -> list[bytes]:
    """Return the file's packets as another library reads them."""
    with RawPcapReader(str(path)) as reader:
        return [data for data, _ in reader]


def test_captures_hold_the_interfaces_packets(tmp_path: Path) -> None:
    tagged = request(0x23, 2)[:12] + b"\x81\x00\x20\x07\x08\x00" + bytes(50)

    def body() -> None:
        one, two = links(2)
        engine = Engine({1: "s1", 2: "s2"}, pcap=tmp_path, faults=[FaultRule(port=2, direction="out", duplicate=1)])
        engine.load(PROGRAM)
        engine.start()
        for packet in (tagged, request(0x23, 2), request(0x23, 9)):
            one.send(packet)
        until = [receive(two) for _ in range(4)][-1]  # each packet twice, with its tag
        assert until == request(0x23, 3)
        engine.stop()
        ours = [data for data in pcap_packets(tmp_path / "s1_in.pcap") if data[0] == 0x23]
        assert ours[:2] == [tagged, request(0x23, 2)]
        sent = pcap_packets(tmp_path / "s2_out.pcap")
        assert [len(data) for data in sent] == [len(tagged)] * 2 + [LENGTH] * 2
        assert pcap_packets(tmp_path / "s1_out.pcap") == []

    alone(body)


def test_capture_without_room_ends_and_packets_continue(tmp_path: Path) -> None:
    def body() -> None:
        one, two = links(2)
        engine = Engine({1: "s1", 2: "s2"}, pcap=tmp_path)
        engine.load(PROGRAM)
        engine.start()
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
        for _ in range(3):
            one.send(request(0x23, 2, rest=bytes(5000)))
            assert receive(two) == request(0x23, 3, rest=bytes(5000))
        engine.stop()
        assert engine.capture_errors() == {(1, "in"): "No space left on device", (2, "out"): "No space left on device"}
        assert pcap_packets(tmp_path / "s2_out.pcap") == [request(0x23, 3, rest=bytes(5000))] * 2, (
            "a full disk must leave whole packets"
        )

    alone(body)


def test_send_failures_are_counted() -> None:
    def body() -> None:
        (one,) = links(1)
        engine = switch(1)
        subprocess.run(["ip", "link", "set", "s1", "mtu", "1500"], check=True)
        engine.send(request(0x23, 1, rest=bytes(3000)))
        engine.send(request(0x23, 9))
        engine.send(request(0x23, 1))
        assert receive(one) == request(0x23, 2)
        drops = engine.stats().drops
        assert drops["sent too long"] == 1
        assert drops["unknown port"] == 1

    alone(body)


@pytest.mark.parametrize(("bypass", "shaped"), [(False, True), (True, False)])
def test_only_a_bypass_avoids_traffic_shaping(bypass: bool, shaped: bool) -> None:
    def body() -> None:
        one, two = links(2)
        for command in (
            "tc qdisc add dev s2 root handle 1: htb default 1",
            "tc class add dev s2 parent 1: classid 1:1 htb rate 100mbit",
        ):
            subprocess.run(command.split(), check=True)
        engine = switch(2, qdisc_bypass=bypass)
        for _ in range(20):
            one.send(request(0x23, 2, rest=bytes(1000)))
        for _ in range(20):
            receive(two)
        show = ["tc", "-s", "class", "show", "dev", "s2"]
        shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        engine.stop()
        packets = int(shown.split(" bytes ")[1].split(" pkt ")[0])
        assert (packets >= 20) == shaped, shown  # the kernel's packets are among them

    alone(body)


def test_cpu_port_has_packet_headers() -> None:
    def body() -> None:
        one, two = links(2)
        engine = switch(2)
        one.send(request(0x23, 255, rest=b"to the controller"))
        assert engine.take_packet_ins(10) == [request(0x23, 256, rest=b"to the controller")]
        engine.send(request(0x23, 2, rest=b"from the controller"))
        assert receive(two) == request(0x23, 3, rest=b"from the controller")

    alone(body)


@pytest.mark.parametrize("command", ["ip link del s2", "ip link set s2 down"])
def test_other_ports_continue_when_an_interface_disappears(command: str, caplog: pytest.LogCaptureFixture) -> None:
    def body() -> None:
        one, _, three = links(3)
        engine = switch(3)
        subprocess.run(command.split(), check=True)
        for _ in range(3):
            one.send(request(0x23, 2))
            one.send(request(0x23, 3))
            assert receive(three) == request(0x23, 4)
        before = time.process_time()
        assert engine.take_packet_ins(0.2) == []
        assert time.process_time() - before < 0.1, "the packet thread must sleep"
        assert engine.stats().drops["send failed"] == 3
        engine.stop()
        warning = "port 2: interface s2 is down or gone; packets to it count as 'send failed'"
        assert [record.getMessage() for record in caplog.records] == [warning]

    alone(body)


def test_missing_interface_is_named() -> None:
    def body() -> None:
        engine = Engine({1: "nothing0"})
        with pytest.raises(PortError, match=r"port 1: interface nothing0 .*: No such device"):
            engine.start()

    alone(body)
