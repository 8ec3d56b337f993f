"""A worker's UDP socket: datagrams out to the switch's service address, datagrams in.

Knows nothing of blocks.  UDP's checksum is switched off: the switch changes the payload (p4src/checksum.p4).
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from host.wire import PACKET_BYTES_MAX, PORT

_SO_NO_CHECK = 11  # linux/asm-generic/socket.h; Python has no name for it
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_BYTES = 16 << 20


@dataclass(slots=True)
class Traffic:
    """What went over the socket: UDP payload bytes and packets."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    send_failures: int = 0


class Transport:
    """A non-blocking UDP socket connected to `service`, bound to the protocol's port of `local` (all addresses)."""

    def __init__(self, service: str, local: str = "") -> None:
        self.traffic = Traffic()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
        self._socket.bind((local, PORT))
        self._socket.connect((service, PORT))
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """For an event loop's add_reader."""
        return self._socket.fileno()

    def send(self, datagram: bytes) -> None:
        """Hand a datagram to the kernel; one that it cannot take is lost, as on any network, and counted."""
        try:
            self._socket.send(datagram)
        except (BlockingIOError, ConnectionRefusedError):
            self.traffic.send_failures += 1
            return
        self.traffic.packets_sent += 1
        self.traffic.bytes_sent += len(datagram)

    def receive(self, most: int = 256) -> Iterator[bytes]:
        """The datagrams that are there, at most `most`."""
        for _ in range(most):
            try:
                datagram = self._socket.recv(PACKET_BYTES_MAX + 1)
            except (BlockingIOError, ConnectionRefusedError):
                return
            self.traffic.packets_received += 1
            self.traffic.bytes_received += len(datagram)
            yield datagram

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()
