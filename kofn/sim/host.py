"""A worker's host in virtual time: host.c moves packets between the worker's protocol core and its links."""

from collections.abc import Callable

from kofn.sim import structs
from kofn.sim.clock import VirtualClock
from kofn.sim.machine import Machine
from kofn.sim.native import Native
from kofn.sim.network import Link, put
from kofn_common.wire.packet import KofnHeader
from kofn_host.engine.pacing_rate import PacingRate, pacer_fields
from kofn_host.protocol.core import Protocol
from kofn_host.protocol.instructions import Instruction


class HostedProtocol(Protocol):
    """A Protocol whose packets a VirtualHost sends."""

    host: "VirtualHost"

    def news(self) -> list[Instruction]:
        """Return instructions that packets have made urgent. Raise ProtocolError for an impossible packet."""
        if self.host.failed:
            self._fail()
        return self._take() if self._state.urgent_count else []

    def held_back(self) -> list[Instruction]:
        """Return all instructions, urgent or not."""
        return self._take()

    def _take(self) -> list[Instruction]:
        self.host.native.call("send")
        return super()._take()


class VirtualHost:
    """Sends the protocol's packets, and reads arriving packets, for `packet_s` of CPU time a packet.

    The host calls `news` when the protocol has other urgent instructions, when the protocol's iteration has ended, and
    at every packet while `attentive` is true. The host calls `timer` when the protocol's deadline has passed.
    """

    def __init__(
        self,
        clock: VirtualClock,
        machine: Machine,
        protocol: HostedProtocol,
        uplink: Link,
        *,
        packet_s: float,
        pace: PacingRate | None,
        news: Callable[[], object],
        timer: Callable[[], object],
    ) -> None:
        rate = pacer_fields(pace)
        ends = machine.native.address, protocol.address, uplink.native.address
        calls = clock.number_of(news), clock.number_of(timer)
        self.native = Native("host", *ends, packet_s, *rate, *calls, keeps=(machine, protocol, uplink))
        self._fields = self.native.fields(structs.Host)
        protocol.host = self

    @property
    def attentive(self) -> bool:
        return bool(self._fields.attentive)

    @attentive.setter
    def attentive(self, attentive: bool) -> None:
        self._fields.attentive = attentive

    @property
    def failed(self) -> bool:
        """Whether the protocol has failed on a packet."""
        return bool(self._fields.failed)

    @property
    def queued(self) -> bool:
        """Whether packets wait for the pacer."""
        return bool(self.native.call("queued"))

    def set_pace(self, pace: PacingRate | None) -> None:
        """Change the rate of sending."""
        self.native.call("rate", *pacer_fields(pace))

    def set_timer(self) -> None:
        """Set the timer to the protocol's deadline."""
        self.native.call("set_timer")

    def take(self, header: KofnHeader, values: bytes) -> None:
        """Receive a packet."""
        put(self.native, header, values)
