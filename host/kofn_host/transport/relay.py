"""A relay between an engine and its socket, on an event loop, for injected faults and packet codecs in Python."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

from kofn_common.wire import packet as wire
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import HEADER_BYTES, PACKET_BYTES_MAX
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.send_queue import SendQueue
from kofn_host.transport.udp import socket_pair

_BATCH = 256

Carry: TypeAlias = Callable[[list[bytes]], None]


class Relay:
    """Carries datagrams between `inner`, the engine's socket, and `outer`; each direction has its faults.

    If `packets` is not wire.packet, the module `packets` makes each outgoing packet again from its header's fields and
    its values, and reads each arriving packet.
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
        self._outer, self._loop = outer, loop
        leave = self._through(sending, self._carry_to(outer))
        arrive = self._carry_to(self._near)
        if packets is not wire:
            leave, arrive = _remaking(wire, packets, leave), _remaking(packets, wire, arrive)
        loop.add_reader(self._near, self._relay, self._near, leave)
        loop.add_reader(outer, self._relay, outer, self._through(receiving, arrive))

    def close(self) -> None:
        """Close the relay; datagrams under way are lost."""
        for end in (self._near, self._outer):
            self._loop.remove_reader(end)
        self._near.close()
        self.inner.close()

    def _relay(self, source: socket.socket, carry: Carry) -> None:
        datagrams: list[bytes] = []
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while len(datagrams) < _BATCH:
                datagrams.append(source.recv(PACKET_BYTES_MAX + 1))
        carry(datagrams)

    def _through(self, faults: Faults | None, carry: Carry) -> Carry:
        """Return `carry` behind a direction's faults."""
        return SendQueue(faults, self._loop, carry).carry if faults else carry

    @staticmethod
    def _carry_to(target: socket.socket) -> Carry:
        def carry(datagrams: list[bytes]) -> None:
            for datagram in datagrams:
                with contextlib.suppress(OSError):  # a datagram that the kernel refuses is lost, as on any network
                    target.send(datagram)

        return carry


def _remaking(reader: ModuleType, maker: ModuleType, carry: Carry) -> Carry:
    """Return `carry` behind two packet modules: one reads each packet, and the other makes it again."""

    def remade(datagram: bytes) -> bytes:
        with contextlib.suppress(WireError):  # a datagram that is no packet stays unchanged
            made: bytes = maker.encode(reader.decode_header(datagram), datagram[HEADER_BYTES:])
            return made
        return datagram

    return lambda datagrams: carry([*map(remade, datagrams)])
