"""A worker's side of the data network: the engine's thread on its socket, and ignored datagrams."""

import asyncio
import importlib
import logging
from collections.abc import Callable
from types import ModuleType

from kofn_common.wire import packet as wire
from kofn_host.engine.engine import EnginePort, Traffic, WorkerEngine
from kofn_host.transport.transport import Transport

log = logging.getLogger(__name__)

IGNORED = {
    "short_packets": "a datagram that is shorter than a header",
    "other_version": "a packet of another version of kofn",
    "wrong_length": "a packet whose length is not what its header says",
    "damaged": "a packet whose checksum does not fit its content",
}
"""Why a datagram was ignored, keyed by its Traffic counter."""


class DataLink:
    """Moves a protocol's packets over `transport`; `packets` is the name of the packet codec, from job.packets."""

    def __init__(self, transport: Transport, packets: str) -> None:
        self._transport, self._packets = transport, _module(packets)
        self._ignored = set[str]()
        self._engine: WorkerEngine | None = None

    def open(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: EnginePort,
        news: Callable[[], object],
        *,
        batch: int,
        exact_port: EnginePort | None,
    ) -> None:
        """Begin to send and to receive; call `news` when the protocol has news.

        `batch`: the most closed blocks that one call reports; `exact_port`: another job's protocol on the same socket.
        """
        opened = self._transport.open(loop, self._packets)
        self._engine = WorkerEngine(
            protocol, opened, self._transport.pace, batch=batch, exact_port=exact_port, joins=self._transport.joins
        )
        self._loop = loop
        loop.add_reader(self._engine, news)

    def close(self) -> None:
        """Close the socket."""
        if self._engine is not None:
            self._loop.remove_reader(self._engine)
            self._engine.close()
        self._transport.close()

    @property
    def traffic(self) -> Traffic:
        """The counters of the socket."""
        return Traffic() if self._engine is None else self._engine.traffic

    @property
    def queued(self) -> int:
        """Packets that wait in the send queue."""
        return 0 if self._engine is None else self._engine.queued

    def want(self, fewer: int) -> None:
        """Call `news` once, when fewer than `fewer` contributions wait."""
        if self._engine is not None:
            self._engine.want(fewer)

    def warn(self) -> None:
        """Log the first ignored datagram of each kind."""
        traffic = self.traffic
        for name, what in IGNORED.items():
            if name not in self._ignored and getattr(traffic, name):
                self._ignored.add(name)
                log.warning("ignored: %s (further ones are only counted)", what)


def _module(name: str) -> ModuleType:
    """Return the module of this packet codec: wire.packet, or wire.scapy_layer (Scapy)."""
    return wire if name == "fast" else importlib.import_module("kofn_common.wire.scapy_layer")
