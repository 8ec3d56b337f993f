"""The star between workers and switch: a full-duplex link each, packets in the order in which they were sent."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from kofn.host.errors import WireError
from kofn.host.transport.fault_injection import Faults
from kofn.host.transport.send_queue import SendQueue
from kofn.host.wire import packet
from kofn.host.wire.packet import HEADER_BYTES, KofnHeader, decode_header, encode
from kofn.sim.clock import VirtualClock

Take = Callable[[KofnHeader, bytes], None]

FRAME_BYTES = packet.FRAME_BYTES + 24
"""Ethernet, IPv4 and UDP headers; preamble, checksum and gap."""

LATENCY_S = 50e-6
"""From one end to the other, queues of the kernel included."""


class _Underway(NamedTuple):
    """A packet that waits for the link or is on it."""

    leaves_s: float  # when its last byte does
    header: KofnHeader
    values: bytes


class Link:
    """One direction of a worker's link; `take` gets what arrives."""

    def __init__(self, clock: VirtualClock, mbps: float | None, faults: Faults, take: Take) -> None:
        self._clock, self._take = clock, take
        self._byte_s = 8e-6 / mbps if mbps else 0.0
        self._free_s = 0.0
        self._underway: deque[_Underway] = deque()
        self._line = SendQueue(faults, clock, self._decode) if faults else None
        self.packets = self.bytes = 0

    def send(self, header: KofnHeader, values: bytes) -> None:
        """Put a packet on the link."""
        size = HEADER_BYTES + len(values)
        self.packets += 1
        self.bytes += size
        self._free_s = max(self._free_s, self._clock.time()) + (size + FRAME_BYTES) * self._byte_s
        self._underway.append(_Underway(self._free_s, header, values))
        self._clock.after(self._free_s + LATENCY_S, self._arrive)

    def shape(self, mbps: float) -> None:
        """Another rate from now on, for what is underway as well."""
        now, before_s, self._byte_s = self._clock.time(), self._byte_s, 8e-6 / mbps
        if self._free_s <= now:
            return
        longer = self._byte_s / before_s
        for _ in range(len(self._underway)):
            packet = self._underway.popleft()
            if packet.leaves_s > now:
                packet = packet._replace(leaves_s=now + (packet.leaves_s - now) * longer)
                self._clock.after(packet.leaves_s + LATENCY_S, self._arrive)
            self._underway.append(packet)
        self._free_s = now + (self._free_s - now) * longer

    def _arrive(self) -> None:
        """At the other end, but for what the configuration's faults do to it; later if the rate has fallen."""
        if not self._underway or self._underway[0].leaves_s + LATENCY_S > self._clock.time():
            return
        _, header, values = self._underway.popleft()
        if self._line is None:
            self._take(header, values)
        else:
            self._line.carry([encode(header, values)])

    def _decode(self, datagrams: list[bytes]) -> None:
        """What the faults have let through; a corrupted one is dropped there, as the real ones do."""
        for datagram in datagrams:
            try:
                header = decode_header(datagram)
            except WireError:
                continue
            self._take(header, datagram[HEADER_BYTES:])
