"""A relay between an engine and its socket, on an event loop, for injected faults and packet codecs in Python."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from types import ModuleType

from kofn_common.wire import packet as wire
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.send_queue import SendQueue
from kofn_host.transport.udp import socket_pair

_BATCH = 256


class Relay:
    """Carries datagrams between `inner`, the engine's socket, and `outer`; each direction has its faults.

    If `packets` is another module than wire.packet, this module decodes and re-encodes each outgoing datagram.
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
        """Close the relay; datagrams under way are lost."""
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
        """Return the datagram decoded and re-encoded by `packets`, or unchanged if it is no packet."""
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
                with contextlib.suppress(OSError):  # a datagram that the kernel refuses is lost, as on any network
                    target.send(datagram)

        return carry
