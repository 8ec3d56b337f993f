"""Echoes by ICMP (RFC 792): whether packets of a size return whole, and the other machine's clock.

python -m kofn.doctor.echo ADDRESS MOST      prints the largest size, up to MOST bytes, of a packet that returns
"""

import os
import select
import socket
import struct
import sys
import time
from dataclasses import dataclass

ECHO, ECHO_REPLY, TIMESTAMP, TIMESTAMP_REPLY = 8, 0, 13, 14
IP_BYTES, ICMP_BYTES = 20, 8
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
"""Options of linux/in.h: never fragment, and ignore the kernel's path MTU."""

WAIT_S = 0.5
TRIES = 3
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """Echoes to an address, through `interface` if it is given. Echoes need root."""

    address: str
    interface: str = ""

    def comes_back(self, size: int) -> bool:
        """Return whether a packet of `size` bytes, IP header included, comes back; this machine does not fragment
        it."""
        data = bytes(max(0, size - IP_BYTES - ICMP_BYTES))
        return self._exchange(ECHO, ECHO_REPLY, data) is not None

    def largest(self, most: int) -> int:
        """Return the largest size of a packet that comes back, up to `most` bytes; 0: no packet comes back."""
        least = IP_BYTES + ICMP_BYTES
        if not self.comes_back(least):
            return 0
        passes, fails = least, most + 1
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if self.comes_back(middle):
                passes = middle
            else:
                fails = middle
        return passes

    def clock_ahead_s(self) -> float | None:
        """Return by how much the other machine's clock is ahead; None without an answer."""
        begin = time.time()
        answer = self._exchange(TIMESTAMP, TIMESTAMP_REPLY, bytes(12))
        if answer is None or len(answer) < 12:
            return None
        here_ms = (begin + time.time()) / 2 * 1000 % DAY_MS
        (there_ms,) = struct.unpack_from("!I", answer, 4)
        ahead_ms = (there_ms - here_ms + DAY_MS / 2) % DAY_MS - DAY_MS / 2
        return float(ahead_ms / 1000)

    def _exchange(self, kind: int, answer: int, data: bytes) -> bytes | None:
        """Return the answer's data; None after TRIES without an answer."""
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as line:
            line.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
            if self.interface:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.interface.encode())
            line.connect((self.address, 0))
            for number in range(TRIES):
                own = os.getpid() & 0xFFFF
                try:
                    line.send(_packet(kind, own, number, data))
                except OSError:  # larger than the interface's MTU, or no route
                    return None
                if (found := _await(line, answer, own, number)) is not None:
                    return found
        return None


def _await(line: socket.socket, kind: int, own: int, number: int) -> bytes | None:
    deadline = time.monotonic() + WAIT_S
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([line], [], [], left)[0]:
            return None
        try:
            packet = line.recv(65535)
        except OSError:  # an ICMP error from a router
            return None
        body = packet[(packet[0] & 15) * 4 :]
        if len(body) >= ICMP_BYTES and struct.unpack_from("!BxxxHH", body) == (kind, own, number):
            return body[ICMP_BYTES:]
    return None


def _packet(kind: int, own: int, number: int, data: bytes) -> bytes:
    blank = struct.pack("!BBHHH", kind, 0, 0, own, number) + data
    return struct.pack("!BBHHH", kind, 0, checksum(blank), own, number) + data


def checksum(data: bytes) -> int:
    """Return the checksum of RFC 1071."""
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF)


if __name__ == "__main__":
    print(Echo(address=sys.argv[1]).largest(int(sys.argv[2])))
