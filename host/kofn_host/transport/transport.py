"""A worker's connection to the data network: socket, pace and injected faults.

engine -- socket -- switch
engine -- relay (faults, Scapy) -- socket -- switch
"""

import asyncio
import socket
from types import ModuleType

from kofn_common.wire import packet as wire
from kofn_common.wire.packet import PORT
from kofn_host.engine.pacing_rate import PacingRate
from kofn_host.transport.fault_injection import Faults
from kofn_host.transport.relay import Relay
from kofn_host.transport.udp import connected_socket, may_join


class Transport:
    """A UDP socket connected to `service`, bound to `local` and `interface` (empty: all addresses and interfaces).

    Packets leave the engine at this `pace`, and faults apply after that; None: unpaced.  `switch_segments`: as in
    udp.may_join.
    """

    def __init__(
        self,
        service: str,
        local: str = "",
        *,
        sending: Faults | None = None,
        receiving: Faults | None = None,
        pace: PacingRate | None = None,
        port: int = PORT,
        interface: str = "",
        switch_segments: bool = False,
    ) -> None:
        self.pace, self.port = pace, port
        self._sending, self._receiving, self._switch_segments = sending, receiving, switch_segments
        self._socket = connected_socket(service, local, port, interface)
        self.joins = False
        """Whether packets may be coalesced on the socket that open() has returned (udp.may_join)."""
        self._relay: Relay | None = None

    def open(self, loop: asyncio.AbstractEventLoop, packets: ModuleType = wire) -> socket.socket:
        """Return the engine's socket; `packets`: the module that encodes and decodes each packet."""
        if not self._sending and not self._receiving and packets is wire:
            self.joins = may_join(self._socket, switch_segments=self._switch_segments)
            return self._socket
        self._relay = Relay(self._socket, loop, packets, sending=self._sending, receiving=self._receiving)
        return self._relay.inner

    def close(self) -> None:
        """Close the socket."""
        if self._relay is not None:
            self._relay.close()
        self._socket.close()
