"""The star between workers and switch: a full-duplex link each, packets in the order in which they were sent."""

from collections.abc import Callable

from host import pacing
from host.errors import WireError
from host.faults import Faults
from host.transport import Line
from host.wire import HEADER_BYTES, Header, decode_header, encode
from sim.clock import Clock

Take = Callable[[Header, bytes], None]

FRAME_BYTES = pacing.FRAME_BYTES + 24
"""Ethernet, IPv4 and UDP headers; preamble, checksum and gap."""

LATENCY_S = 50e-6
"""From one end to the other, queues of the kernel included."""


class Link:
    """One direction of a worker's link; `take` gets what arrives."""

    def __init__(self, clock: Clock, mbps: float | None, faults: Faults, take: Take) -> None:
        self._clock, self._take = clock, take
        self._byte_s = 8e-6 / mbps if mbps else 0.0
        self._free_s = 0.0
        self._line = Line(faults, clock, self._decode) if faults else None
        self.packets = self.bytes = 0

    def send(self, header: Header, values: bytes) -> None:
        """Put a packet on the link."""
        size = HEADER_BYTES + len(values)
        self.packets += 1
        self.bytes += size
        self._free_s = max(self._free_s, self._clock.time()) + (size + FRAME_BYTES) * self._byte_s
        self._clock.after(self._free_s + LATENCY_S, self._arrive, header, values)

    def _arrive(self, header: Header, values: bytes) -> None:
        """At the other end, but for what the configuration's faults do to it."""
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
