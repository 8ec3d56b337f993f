"""Checks of the network: which hosts reach each other, and at what rate.

boot.py runs `checks.py PLAN` as a separate process, with the plan as JSON. checks.py prints one JSON line for each
check, then one line with the result. A socket belongs to the namespace in which it was made. So this one process makes
sockets in all hosts, and needs neither ping nor iperf. The switch must already forward between the hosts' addresses.
"""

import contextlib
import fcntl
import json
import os
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from typing import Any

from interfaces import FRAME_HEADER, burst_bytes
from namespaces import Namespace

PING_S = 1.0
PING_TRIES = 3
"""The switch may still be loading its tables when the first request is sent."""

RATE_TRIES = 3

SHARE = (0.60, 1.05)
"""The accepted shares of the configured rate: a busy machine loses packets, and the measurement is inexact."""

ARRIVED = 0.9
"""The least share of the sent bytes that arrives if nothing is lost: the rest is on its way."""

DRAIN_S = 10.0
"""The longest wait for a queue, of at most 1000 frames, to empty."""

IP_UDP_HEADER = 28
FRAMES_LEAST = 8
"""Received frames that a measurement needs, within its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedHost:
    """A host as the plan names it."""

    name: str
    ip: str
    management: str
    mbps: float | None
    switch: str
    uplink_mbps: float | None
    namespace: Namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Ethernet bits a second, in Mbit/s; `waited`: whether the sender ever had to wait for the link."""

    sent: float
    received: float
    waited: bool = True

    @property
    def idle(self) -> bool:
        """Return whether the link was not the limit: the sender never waited, and no frames were lost."""
        return not self.waited and self.received >= ARRIVED * self.sent


def main() -> int:
    """Run all checks of the plan in argv and print them. Return 0 if all checks ran, whatever their results."""
    plan = json.loads(sys.argv[1])
    hosts = [
        CheckedHost(
            name=name,
            ip=str(IPv4Interface(entry["ip"]).ip),
            management=entry["management"],
            mbps=entry["mbps"],
            switch=entry["switch"],
            uplink_mbps=entry["uplink_mbps"],
            namespace=Namespace(name, os.open(entry["namespace"], os.O_RDONLY)),
        )
        for name, entry in plan["hosts"].items()
    ]
    good = True
    root, ring = plan["management"], plan["ring"]
    checks = _checks(hosts, root, plan["mtu"]) if plan["whole"] else _reached(hosts, root, ring)
    for check in checks:
        good &= check["ok"]
        _print({"event": "check", **check})
    _print({"event": "checked", "ok": good})
    return 0


def _print(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def _checks(hosts: list[CheckedHost], root: str, mtu: int) -> Iterator[dict[str, Any]]:
    """Check each host's management connection, ping its neighbour, then measure the rate of pairs that answered."""
    for host in hosts:
        yield management(host, root)
    if len(hosts) == 1:
        return
    pairs = list(zip(hosts, hosts[1:] + hosts[:1], strict=True))
    reached = []
    for source, target in pairs:
        check = ping(source, target.name, target.ip)
        reached.append(check["ok"])
        yield check
    seconds = max(0.2, min(0.5, 4.0 / len(hosts)))
    for (source, target), reachable in zip(pairs, reached, strict=True):
        if reachable:
            yield shaping(source, target, mtu, seconds)


def _reached(hosts: list[CheckedHost], root: str, ring: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Ping the root and the next host of the ring from each host: other machines have some of the network's hosts."""
    following = dict(zip((name for name, _ in ring), ring[1:] + ring[:1], strict=True))
    for host in hosts:
        yield ping(host, "root", root)
        yield ping(host, *following[host.name])


def management(host: CheckedHost, root: str) -> dict[str, Any]:
    """Check that a host can open a TCP connection to root, as a worker does to the controller."""
    name = f"management {host.name} -> root"
    with socket.create_server((root, 0)) as server, host.namespace.entered():
        begin = time.monotonic()
        try:
            with socket.create_connection(server.getsockname(), PING_S, (host.management, 0)):
                milliseconds = (time.monotonic() - begin) * 1e3
        except OSError as error:
            detail = f"{host.management} cannot connect to {root}: {error}: does a firewall of this machine drop it?"
            return {"name": name, "ok": False, "detail": detail}
    return {"name": name, "ok": True, "detail": f"connected in {milliseconds:.2f} ms", "ms": round(milliseconds, 3)}


def ping(source: CheckedHost, target: str, address: str) -> dict[str, Any]:
    """Check that an echo request of a host reaches `target`, and its reply comes back."""
    name = f"ping {source.name} -> {target}"
    with source.namespace.entered():
        echo = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    with echo:
        for number in range(1, PING_TRIES + 1):
            begin = time.monotonic()
            try:
                echo.sendto(_echo_request(number), (address, 0))
                answered = _echoed(echo, number, begin + PING_S)
            except OSError as error:
                return {"name": name, "ok": False, "detail": f"{address}: {error.strerror}"}
            milliseconds = (time.monotonic() - begin) * 1e3
            if answered:
                detail = f"{address} answered in {milliseconds:.2f} ms"
                return {"name": name, "ok": True, "detail": detail, "ms": round(milliseconds, 3)}
    detail = (
        f"{address} did not answer {PING_TRIES} requests: is the switch running, and does it have forwarding entries?"
    )
    return {"name": name, "ok": False, "detail": detail}


def _echo_request(number: int) -> bytes:
    """Return an ICMP echo request whose identifier is this process's id."""
    words = (0x0800, os.getpid() & 0xFFFF, number)
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!HHHH", words[0], ~total & 0xFFFF, *words[1:])


def _echoed(echo: socket.socket, number: int, deadline: float) -> bool:
    """Wait for the reply to one request; the raw socket sees every ICMP packet that comes to the host."""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([echo], [], [], left)[0]:
            return False
        packet = echo.recv(2048)
        header = (packet[0] & 15) * 4
        kind, _, _, identifier, sequence = struct.unpack_from("!BBHHH", packet, header)
        if (kind, identifier, sequence) == (0, os.getpid() & 0xFFFF, number):
            return True
    return False


def shaping(source: CheckedHost, target: CheckedHost, mtu: int, seconds: float) -> dict[str, Any]:
    """Check that a link carries the configured rate within SHARE, or less if the sender was the limit."""
    name = f"rate {source.name} -> {target.name}"
    limits = [source.mbps, target.mbps]
    limits += [source.uplink_mbps, target.uplink_mbps] if source.switch != target.switch else []
    configured = min((limit for limit in limits if limit is not None), default=None)
    low, high = (share * (configured or 0.0) for share in SHARE)
    rates = _best(lambda: measure(source, target, mtu, seconds, configured), low)
    measured = f"measured {rates.received:.1f} Mbit/s"
    numbers: dict[str, Any] = {
        "configured_mbps": configured,
        "measured_mbps": round(rates.received, 1),
        "sent_mbps": round(rates.sent, 1),
    }
    if configured is None:
        return {"name": name, "ok": True, "detail": f"not shaped, {measured}", **numbers}
    sender = source.mbps or rates.sent
    slow = rates.received < low
    good = (not slow or rates.idle) and rates.received <= high and rates.sent <= sender * SHARE[1]
    detail = f"configured {configured:g} Mbit/s, {measured} (sent {rates.sent:.1f})"
    if slow and good:
        detail += ": this machine's processors sent no more, the link was never full"
    if not good:
        detail += f": expected {low:.1f} to {high:.1f}; see `tc -s qdisc show dev {source.name}-eth0` in {source.name}"
    return {"name": name, "ok": good, "detail": detail, **numbers}


def _best(once: Callable[[], Rates], low: float) -> Rates:
    """Measure again while the rate is below `low`: busy processors can make a measured rate too low, never too high."""
    best = once()
    for _ in range(RATE_TRIES - 1):
        if best.received >= low:
            break
        again = once()
        waited = best.waited or again.waited
        best = replace(max(best, again, key=lambda rates: rates.received), waited=waited)
    return best


def measure(source: CheckedHost, target: CheckedHost, mtu: int, seconds: float, configured: float | None) -> Rates:
    """Send UDP as fast as the link takes it, and count what leaves and what arrives.

    The clock starts when the buckets of both shapers are empty, so that tokens from before do not count.
    """
    frame = mtu + FRAME_HEADER
    skipped = 2 * burst_bytes(configured, mtu) + frame if configured else 0
    with target.namespace.entered():
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with source.namespace.entered():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, receiver:
        receiver.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 8 << 20)
        receiver.bind((target.ip, 0))
        sender.connect(receiver.getsockname())
        sender.setblocking(False)
        receiver.setblocking(False)
        rates = _transfer(sender, receiver, frame, skipped, seconds)
        _drain(receiver, 4 * frame * 8e-6 / configured if configured else 0.0)
    return rates


def _drain(receiver: socket.socket, quiet_s: float) -> None:
    """Receive until nothing has come for a while: queued frames would delay the next measurement."""
    give_up = time.monotonic() + DRAIN_S
    while time.monotonic() < give_up and select.select([receiver], [], [], max(quiet_s, 0.02))[0]:
        receiver.recv(1 << 16)


def _transfer(sender: socket.socket, receiver: socket.socket, frame: int, skipped: int, seconds: float) -> Rates:
    """Send and receive. The measurement begins when `skipped` bytes have arrived. The measurement ends `seconds` later,
    or when FRAMES_LEAST frames have arrived, if that is later still.

    Other processes may hold this process up, and frames arrive meanwhile. So the measurement begins and ends when no
    frame waits in the receiver.
    """
    payload = bytes(frame - FRAME_HEADER - IP_UDP_HEADER)
    buffer = bytearray(len(payload))
    sent = received = 0
    waited = False
    begin: tuple[float, int, int] | None = None
    give_up = time.monotonic() + 20 * seconds
    while time.monotonic() < give_up:
        readable, writable, _ = select.select([receiver], [sender], [], 0.05)
        received += frame * _receive(receiver, buffer) if readable else 0
        now = time.monotonic()
        if begin is None and received >= max(skipped, frame):
            begin = (now, sent - _queued(sender), received)
        if begin and now - begin[0] >= seconds and received - begin[2] >= FRAMES_LEAST * frame:
            break
        went = bool(writable) and _send(sender, payload)
        sent += frame if went else 0
        waited |= begin is not None and not went
    if begin is None:
        return Rates(sent=0.0, received=0.0)  # nothing came through
    bits = 8e-6 / (time.monotonic() - begin[0])
    return Rates(sent=(sent - _queued(sender) - begin[1]) * bits, received=(received - begin[2]) * bits, waited=waited)


def _receive(receiver: socket.socket, buffer: bytearray) -> int:
    """Receive all frames that have arrived; return their number."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            receiver.recv_into(buffer)
            count += 1
    return count


def _send(sender: socket.socket, payload: bytes) -> bool:
    try:
        sender.send(payload)
    except BlockingIOError:
        return False
    return True


def _queued(sender: socket.socket) -> int:
    """Return the bytes that were sent but have not left the host; the kernel also counts its own overhead."""
    return int(struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))[0])


if __name__ == "__main__":
    sys.exit(main())
