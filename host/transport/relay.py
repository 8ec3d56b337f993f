"""A relay between an engine and its socket, on an event loop: injected faults, and packets made and read in Python."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from types import ModuleType

from kofn.host.errors import WireError
from kofn.host.transport.fault_injection import Faults
from kofn.host.transport.send_queue import SendQueue
from kofn.host.transport.udp import socket_pair
from kofn.host.wire import packet as wire
from kofn.host.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX

_BATCH = 256


class Relay:
    """Carries datagrams between `inner`, which is for the engine, and the `outer` socket; each way has its faults.

    `packets` decodes each datagram that leaves and encodes it again, where it is not wire.packet.
    """

    def __init__(
        self,
        outer: socket.socket,
        loop: asyncio.AbstractEventLoop,
        packets: ModuleType,
        *,
        sending: Faults | None,
        receiving: Faults | None,
    ) -> None:
        self.inner, self._near = socket_pair()
        self._outer, self._loop, self._packets = outer, loop, packets
        for source, target, faults in ((self._near, outer, sending), (outer, self._near, receiving)):
            carry = self._carry_to(target)
            if faults:
                carry = SendQueue(faults, loop, carry).carry
            loop.add_reader(source, self._relay, source, carry, source is self._near)

    def close(self) -> None:
        """What is underway is lost."""
        for end in (self._near, self._outer):
            self._loop.remove_reader(end)
        self._near.close()
        self.inner.close()

    def _relay(self, source: socket.socket, carry: Callable[[list[bytes]], None], made: bool) -> None:
        datagrams: list[bytes] = []
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while len(datagrams) < _BATCH:
                datagrams.append(source.recv(PACKET_BYTES_MAX + 1))
        carry([self._remade(datagram) if made else datagram for datagram in datagrams])

    def _remade(self, datagram: bytes) -> bytes:
        """As the module for packets writes what it has read; what it cannot read leaves as it is."""
        if self._packets is wire:
            return datagram
        with contextlib.suppress(WireError):
            made: bytes = self._packets.encode(self._packets.decode_header(datagram), datagram[HEADER_BYTES:])
            return made
        return datagram

    @staticmethod
    def _carry_to(target: socket.socket) -> Callable[[list[bytes]], None]:
        def carry(datagrams: list[bytes]) -> None:
            for datagram in datagrams:
                with contextlib.suppress(OSError):  # what the kernel cannot take is lost, as on any network
                    target.send(datagram)

        return carry
