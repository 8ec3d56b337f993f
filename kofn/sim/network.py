"""A switch or a server, and its full-duplex links to its neighbours, on which packets keep their order.

network.c carries packets; Python sees only packets that are subject to the configuration's faults.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

from kofn.sim import structs
from kofn.sim.clock import VirtualClock
from kofn.sim.machine import Machine
from kofn.sim.native import Native
from kofn_common.wire import packet
from kofn_common.wire.errors import WireError
from kofn_common.wire.packet import (
    HEADER_BYTES,
    PACKET_BYTES_MAX,
    KofnHeader,
    decode_header,
    encode,
    encode_header,
    headers_of,
)
from kofn_host.protocol.leaf import NativeLeaf
from kofn_host.protocol.slots import NativeSlots
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.send_queue import SendQueue

Take = Callable[[KofnHeader, bytes], None]
"""A function that takes a packet: the header, and the bitmaps and values behind the header."""

FRAME_BYTES = packet.FRAME_BYTES
"""The bytes of Ethernet, IPv4 and UDP headers, which the kernel's shaping counts."""

LATENCY_S = 50e-6
"""The seconds that a packet needs from one end of a link to the other end, in addition to the time that the link's rate
and queue take."""

BURST_S, BURST_BYTES = 2e-3, 36056
"""The bytes that an idle link passes at once, as in network.h: those of BURST_S, and at least BURST_BYTES."""

QUEUE_S, QUEUE_BYTES = 0.2, 1 << 20
"""A link's queue, as in network.h. A full queue leaves in QUEUE_S, and has at least QUEUE_BYTES."""


class LinkEnd(Protocol):
    """The end of a link."""

    native: Native

    def take(self, header: KofnHeader, values: bytes) -> None:
        """Receive a packet."""


class Link:
    """One direction of a link; `take` gets the packets that arrive, after faults."""

    def __init__(self, clock: VirtualClock, mbps: float | None, faults: Faults, take: Take) -> None:
        self._take, self._faults = take, faults
        self.native = Native("link", clock.native.address, mbps or 0.0, clock.number_of(self._arrive), keeps=clock)
        self._counted = self.native.fields(structs.Link)
        self._line = SendQueue(faults, clock, self._decode) if faults else None

    @classmethod
    def to(cls, end: LinkEnd, clock: VirtualClock, mbps: float | None, faults: Faults) -> "Link":
        """Make a link to `end`; Python sees the link's packets only if the link has faults."""
        link = cls(clock, mbps, faults, end.take)
        if not faults:
            end.native.call("from", link.native.address)
        return link

    @property
    def packets(self) -> int:
        return self._counted.packets

    @property
    def payload_bytes(self) -> int:
        return self._counted.bytes

    def send(self, header: KofnHeader, values: bytes) -> None:
        """Put a packet on the link."""
        put(self.native, header, values)

    def shape(self, mbps: float) -> None:
        """Change the rate, also for packets in transit."""
        self.native.call("shape", mbps)

    def _arrive(self) -> None:
        """Deliver a packet to the other end, after the configuration's faults."""
        head, body = ctypes.create_string_buffer(HEADER_BYTES), ctypes.create_string_buffer(PACKET_BYTES_MAX)
        while (size := self.native.call("arrived", head, body)) >= 0:
            (header,), values = headers_of(head.raw), body.raw[:size]
            if self._line is None:
                self._take(header, values)
            else:
                self._line.carry([encode(header, values)])

    def _decode(self, datagrams: list[bytes]) -> None:
        """Deliver datagrams after the faults; drop corrupted datagrams, as the ends of real links do."""
        for datagram in datagrams:
            try:
                header = decode_header(datagram)
            except WireError:
                continue
            self._take(header, datagram[HEADER_BYTES:])


class VirtualSwitch:
    """A node that handles one packet after another, each in `packet_s` of CPU time.

    With NativeSlots the node is a switch alone, a root or a parameter server, with NativeLeaf a leaf. Without slots it
    is a switch that forwards packets to and from a server.
    `neighbours` is the number of workers or leaves. The switch calls `digest` at a worker's first counted contribution
    of an iteration, with the worker, the iteration, and whether the contribution was late.
    """

    def __init__(
        self,
        machine: Machine,
        slots: NativeSlots | NativeLeaf | None,
        *,
        neighbours: int,
        packet_s: float,
        digest: Callable[[int, int, bool], None] | None = None,
    ) -> None:
        self._digest, self._links = digest, list[Link]()
        rules = [ctypes.addressof(slots) if isinstance(slots, kind) else None for kind in (NativeSlots, NativeLeaf)]
        call = machine.clock.number_of(self._noted) if digest else 0
        self.native = Native("star", machine.native.address, *rules, neighbours, packet_s, call, keeps=(machine, slots))
        self._noted_last = (ctypes.c_int64 * 3)()

    def lead(self, links: Sequence[Link], uplink: Link | None = None) -> None:
        """Connect the switch to its links. `links` lead to the workers or the leaves; `uplink` leads from a leaf to the
        root, or from a forwarding switch to the server."""
        self._links = [*links, *([uplink] if uplink else [])]
        for rank, link in enumerate(links):
            self.native.call("to", rank, link.native.address)
        if uplink:
            self.native.call("to_root", uplink.native.address)

    def follow(self, rank: int, follows: bool) -> None:
        """Send a worker of this switch answers to its own packets only, or all answers."""
        self.native.call("follow", rank, follows)

    def take(self, header: KofnHeader, values: bytes) -> None:
        """Receive a packet."""
        put(self.native, header, values)

    def _noted(self) -> None:
        assert self._digest is not None
        self.native.call("digest", self._noted_last)
        worker, iteration, late = self._noted_last
        self._digest(worker, iteration, bool(late))


def put(native: Native, header: KofnHeader, values: bytes) -> None:
    """Give a packet from Python to a struct that takes packets."""
    native.call("put", encode_header(header), values, len(values))
