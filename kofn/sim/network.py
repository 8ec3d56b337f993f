"""The star between workers and switch: a full-duplex link each, packets in the order in which they were sent.

network.c carries packets; Python sees those that the configuration's faults are for.
"""

import ctypes
from collections.abc import Callable
from typing import Protocol

from kofn.host.errors import WireError
from kofn.host.protocol.slots import NativeSlots
from kofn.host.transport.fault_injection import Faults
from kofn.host.transport.send_queue import SendQueue
from kofn.host.wire import packet
from kofn.host.wire.packet import (
    HEADER_BYTES,
    PACKET_BYTES_MAX,
    KofnHeader,
    decode_header,
    encode,
    encode_header,
    headers_of,
)
from kofn.sim.clock import VirtualClock
from kofn.sim.machine import Machine
from kofn.sim.native import Native

Take = Callable[[KofnHeader, bytes], None]

FRAME_BYTES = packet.FRAME_BYTES
"""Ethernet, IPv4 and UDP headers, which the kernel's shaping counts."""

LATENCY_S = 50e-6
"""From one end of a link to the other, beside its rate and its queue."""

BURST_S, BURST_BYTES, QUEUED_MOST = 2e-3, 36056, 1000
"""A link's token bucket and queue, as in network.h: after a pause the link passes at once what it carries in BURST_S,
or BURST_BYTES where that is more; the queue has QUEUED_MOST entries."""


class LinkEnd(Protocol):
    """What a link leads to."""

    native: Native

    def take(self, header: KofnHeader, values: bytes) -> None:
        """A packet has come."""


class Link:
    """One direction of a worker's link; `take` gets what arrives, after what faults do to it."""

    def __init__(self, clock: VirtualClock, mbps: float | None, faults: Faults, take: Take) -> None:
        self._take, self._faults = take, faults
        self.native = Native("link", clock.native.address, mbps or 0.0, clock.number_of(self._arrive), keeps=clock)
        self._counted = self.native.first_fields(2)
        self._line = SendQueue(faults, clock, self._decode) if faults else None

    @classmethod
    def to(cls, end: LinkEnd, clock: VirtualClock, mbps: float | None, faults: Faults) -> "Link":
        """Python sees packets only where there are faults."""
        link = cls(clock, mbps, faults, end.take)
        if not faults:
            end.native.call("from", link.native.address)
        return link

    @property
    def packets(self) -> int:
        return self._counted[0]

    @property
    def payload_bytes(self) -> int:
        return self._counted[1]

    def send(self, header: KofnHeader, values: bytes) -> None:
        """Put a packet on the link."""
        put(self.native, header, values)

    def shape(self, mbps: float) -> None:
        """Another rate from now on, for what is underway as well."""
        self.native.call("shape", mbps)

    def _arrive(self) -> None:
        """At the other end, but for what the configuration's faults do to it."""
        head, body = ctypes.create_string_buffer(HEADER_BYTES), ctypes.create_string_buffer(PACKET_BYTES_MAX)
        while (size := self.native.call("arrived", head, body)) >= 0:
            (header,), values = headers_of(head.raw), body.raw[:size]
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


class VirtualSwitch:
    """The slots of a job of so many workers; a packet takes `switch_s` of CPU time.

    `digest`: hears of each worker's first contribution that counts in an iteration: the worker, the iteration, and
    whether that was late.
    """

    def __init__(
        self,
        clock: VirtualClock,
        machine: Machine,
        *,
        workers: int,
        k: int,
        slots: int,
        switch_s: float,
        digest: Callable[[int, int, bool], None],
    ) -> None:
        self._slots = NativeSlots.open(workers=workers, k=k, slots=slots)
        self._digest, self._links = digest, list[Link]()
        native = machine.native.address, ctypes.addressof(self._slots), switch_s, clock.number_of(self._noted)
        self.native = Native("star", *native, keeps=(machine, self._slots))
        self._noted_last = (ctypes.c_int64 * 3)()

    def lead(self, links: list[Link]) -> None:
        """To each worker."""
        self._links = links
        for rank, link in enumerate(links):
            self.native.call("to", rank, link.native.address)

    def set_k(self, k: int) -> None:
        self._slots.k = k

    def take(self, header: KofnHeader, values: bytes) -> None:
        """A packet has come."""
        put(self.native, header, values)

    def _noted(self) -> None:
        self.native.call("digest", self._noted_last)
        worker, iteration, late = self._noted_last
        self._digest(worker, iteration, bool(late))


def put(native: Native, header: KofnHeader, values: bytes) -> None:
    """Give a packet of Python's to a struct that takes packets."""
    native.call("put", encode_header(header), values, len(values))
