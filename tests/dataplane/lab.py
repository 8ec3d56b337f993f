"""Raw frames through a switch: veth pairs whose host ends are in a namespace that ends with the test.

There are no sleeps. After a frame, a marker goes from the same port to every host. A switch keeps the order of frames
between two ports, so all frames have arrived when the markers have.
"""

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Iterator

ETH_P_ALL = 0x0003
PACKET_IGNORE_OUTGOING = 23
SOL_PACKET = 263
CLONE_NEWNET = 0x40000000
IPV4 = b"\x08\x00"
IPV6_MULTICAST = b"\x33\x33"
EXPERIMENTAL = 253
"""The IP protocol of markers."""
MTU = 9000
NUMBERS = itertools.count(1)


def mac(port: int) -> bytes:
    return bytes.fromhex(f"0800000000{port:02x}")


class Lab:
    """Hosts 1..n of a star, as raw sockets; `interfaces` are the switch's ends, PORT@NAME."""

    def __init__(self, hosts: int) -> None:
        self.ports = range(1, hosts + 1)
        name = f"kofn{os.getpid() % 10000}.{next(NUMBERS)}"  # links of an earlier lab disappear only after a while
        self.interfaces = [f"{port}@{name}-{port}" for port in self.ports]
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "echo ready && exec sleep 600"],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout.readline() == b"ready\n"
        for port in self.ports:
            self._link(f"{name}-{port}", f"h{port}")
        self._sockets = {port: self._socket(f"h{port}") for port in self.ports}
        self._marks = 0

    def _link(self, switch_end: str, host_end: str) -> None:
        pid = str(self._holder.pid)
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        commands = [
            ["ip", "link", "add", switch_end, "mtu", str(MTU), "type", "veth", "peer", "name", host_end, "netns", pid],
            [*inside, "ip", "link", "set", host_end, "mtu", str(MTU), "up"],
            ["ip", "link", "set", switch_end, "up"],
        ]
        for command in commands:
            subprocess.run(command, check=True)

    def _socket(self, interface: str) -> socket.socket:
        """Open a packet socket in the holder's namespace; only the opening thread enters it."""
        opened: list[socket.socket] = []

        def enter_and_open() -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{self._holder.pid}/ns/net") as namespace:
                assert libc.setns(namespace.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            raw.bind((interface, ETH_P_ALL))
            raw.settimeout(20)
            opened.append(raw)

        thread = threading.Thread(target=enter_and_open)
        thread.start()
        thread.join()
        return opened[0]

    def exchange(self, port: int, frame: bytes) -> dict[int, list[bytes]]:
        """Send a frame from a port and return the frames that each port receives; ports without any are left out."""
        self._sockets[port].send(frame)
        self._marks += 1
        marks = {to: self._mark(port if to != port else 1 + port % len(self.ports), to) for to in self.ports}
        others = [to for to in self.ports if to != port]
        for to in others:
            self._sockets[port].send(marks[to])
        received = {to: list(self._until(to, marks[to])) for to in others}
        # A switch sends nothing back to its source, so the sender's marker comes from a neighbour, after the frame is
        # known to have passed.
        self._sockets[1 + port % len(self.ports)].send(marks[port])
        received[port] = list(self._until(port, marks[port]))
        return {to: frames for to, frames in received.items() if frames}

    def _mark(self, port: int, to: int) -> bytes:
        """Return a marker between two hosts, from the sender's own address: a switch may drop all others."""
        head = bytes([0x45, 0, 0, 46, 0, 0, 0, 0, 64, EXPERIMENTAL, 0, 0, 10, 0, 0, port, 10, 0, 0, to])
        return mac(to) + mac(port) + IPV4 + head + self._marks.to_bytes(26, "big")

    def _until(self, port: int, mark: bytes) -> Iterator[bytes]:
        """Yield the frames before the marker, without a kernel's own IPv6 multicasts."""
        frames = iter(lambda: self._sockets[port].recv(65535), mark)
        yield from (frame for frame in frames if frame[:2] != IPV6_MULTICAST)

    def close(self) -> None:
        for opened in self._sockets.values():
            opened.close()
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()


@contextlib.contextmanager
def lab(hosts: int) -> Iterator[Lab]:
    network = Lab(hosts)
    try:
        yield network
    finally:
        network.close()
