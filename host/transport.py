"""A worker's UDP socket: datagrams out to the switch's service address, datagrams in.

Knows nothing of blocks.  UDP's checksum is switched off: the switch changes the payload (p4src/checksum.p4).
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass

from host.faults import Faults
from host.wire import PACKET_BYTES_MAX, PORT

_SO_NO_CHECK = 11  # linux/asm-generic/socket.h; Python has no name for it
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_BYTES = 16 << 20
_BATCH = 256

Take = Callable[[list[bytes]], None]
"""What is to be done with datagrams."""


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

    def __init__(
        self, service: str, local: str = "", *, sending: Faults | None = None, receiving: Faults | None = None
    ) -> None:
        self.traffic = Traffic()
        self._sending, self._receiving = sending, receiving
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        _enlarge(self._socket)
        self._socket.bind((local, PORT))
        self._socket.connect((service, PORT))
        self._socket.setblocking(False)

    def listen(self, loop: asyncio.AbstractEventLoop, take: Take) -> None:
        """Give datagrams to `take` as they come, until close()."""
        self._loop, self._take, self._started_s = loop, take, loop.time()
        loop.add_reader(self._socket, self._readable)

    def send(self, datagram: bytes) -> None:
        """Hand a datagram to the network, which may have faults; only after listen()."""
        if not self._sending:
            self._send(datagram)
            return
        for copy in self._sending.fate(datagram, self._loop.time() - self._started_s):
            if copy.delay_s:
                self._loop.call_later(copy.delay_s, self._send, copy.datagram)
            else:
                self._send(copy.datagram)

    def close(self) -> None:
        """Stop listening and give the port back; what is delayed is lost."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _send(self, datagram: bytes) -> None:
        """Hand it to the kernel; what that cannot take is lost, as on any network, and counted."""
        if self._socket.fileno() < 0:
            return
        try:
            self._socket.send(datagram)
        except (BlockingIOError, ConnectionRefusedError):
            self.traffic.send_failures += 1
            return
        self.traffic.packets_sent += 1
        self.traffic.bytes_sent += len(datagram)

    def _readable(self) -> None:
        """Datagrams have come."""
        datagrams = self._receive()
        self._take(datagrams if not self._receiving else self._with_faults(datagrams, self._receiving))

    def _with_faults(self, datagrams: list[bytes], faults: Faults) -> list[bytes]:
        """Those that arrive at once; the delayed ones come later."""
        elapsed_s = self._loop.time() - self._started_s
        copies = [copy for datagram in datagrams for copy in faults.fate(datagram, elapsed_s)]
        for copy in copies:
            if copy.delay_s:
                self._loop.call_later(copy.delay_s, self._arrive_late, copy.datagram)
        return [copy.datagram for copy in copies if not copy.delay_s]

    def _arrive_late(self, datagram: bytes) -> None:
        """The delay of one datagram is over."""
        if self._socket.fileno() >= 0:
            self._take([datagram])

    def _receive(self) -> list[bytes]:
        """The datagrams that are there, at most a batch."""
        datagrams: list[bytes] = []
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while len(datagrams) < _BATCH:
                datagrams.append(self._socket.recv(PACKET_BYTES_MAX + 1))
        self.traffic.packets_received += len(datagrams)
        self.traffic.bytes_received += sum(map(len, datagrams))
        return datagrams


def _enlarge(opened: socket.socket) -> None:
    """A receive buffer for a whole window of results; the system's limit binds only those who are not root."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
