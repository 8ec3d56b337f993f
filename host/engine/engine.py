"""The engine of engine.c: a thread without Python that moves a worker's packets between a socket and the protocol core.

    engine = WorkerEngine(protocol, socket, pace)
    loop.add_reader(engine, news)
    ...
    def news(): follow(protocol.news())

What the protocol wants sent, the engine sends; anything else is the protocol's news(), whenever the engine is readable.
"""

import ctypes
import socket
import weakref
from dataclasses import astuple, dataclass, fields
from typing import Any, NoReturn

from kofn.host.engine.pacing_rate import PacingRate
from kofn.host.errors import AgentError, HostError, ProtocolError
from kofn.host.protocol.core import Protocol
from kofn.host.protocol.instructions import Instruction


@dataclass(slots=True)
class Traffic:
    """What went over the socket: UDP payload bytes and packets; of what came, how much was no packet, and why."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    send_failures: int = 0
    short_packets: int = 0
    other_version: int = 0
    wrong_length: int = 0
    damaged: int = 0


class SharedProtocol(Protocol):
    """A Protocol that an engine drives as well; what it wants done is told by news() alone."""

    engine: "WorkerEngine | None" = None

    def news(self) -> list[Instruction]:
        """What is to be done since the last time; AgentError, ProtocolError when the engine has stopped."""
        return [] if self.engine is None else self._taken("take")

    def _call(self, name: str, *arguments: Any) -> Any:
        """The engine's function of this name, which calls the core while the thread does not."""
        if self.engine is None:
            return super()._call(name, *arguments)
        return self.engine.call(name, *arguments)

    def _take(self) -> list[Instruction]:
        """The engine takes it."""
        return []

    def _fail(self) -> NoReturn:
        if self.engine is None:
            super()._fail()
        raise self.engine.error or ProtocolError(self._said)


class WorkerEngine:
    """Runs until close(); the socket is connected to the switch, and stays the caller's.

    Up to `batch` blocks that have closed are told together.

    AgentError where there are no threads, memory or descriptors left.
    """

    def __init__(
        self, protocol: SharedProtocol, opened: socket.socket, pace: PacingRate | None = None, *, batch: int = 1
    ) -> None:
        self._library, self._protocol = protocol.library, protocol
        mbps, burst_bytes, late_s = (pace.mbps, pace.burst_bytes, pace.late_s) if pace else (0.0, 0, 0.0)
        found = self._library.engine_open(protocol.address, opened.fileno(), batch, mbps, burst_bytes, late_s)
        if not found:
            raise AgentError("no thread, memory or file descriptors for the engine")
        self._engine = ctypes.c_void_p(found)
        self._end = weakref.finalize(self, self._library.engine_close, self._engine)
        self._news_fd: int = self.call("news_fd")
        self._traffic = (ctypes.c_int64 * len(fields(Traffic))).from_address(self.call("traffic"))
        protocol.engine = self

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._news_fd

    def call(self, name: str, *arguments: Any) -> Any:
        """The function of engine.h of this name."""
        return getattr(self._library, f"engine_{name}")(self._engine, *arguments)

    @property
    def error(self) -> HostError | None:
        """Why the thread has ended; None: it has not."""
        said: str = self.call("error").decode()
        if not said:
            return None
        return (ProtocolError if self.call("error_is_cores") else AgentError)(said)

    @property
    def queued(self) -> int:
        """Packets that wait in this host for their turn to leave."""
        queued: int = self.call("queued")
        return queued

    def want(self, fewer: int) -> None:
        """Be readable once, when fewer than so many contributions wait for the pacer or the window."""
        self.call("want", fewer)

    @property
    def traffic(self) -> Traffic:
        return Traffic(*self._traffic)

    def close(self) -> None:
        """End the thread; what waits is lost.  A second time it does nothing."""
        if self._end.alive:
            self._protocol.engine = None
            last, kind = astuple(self.traffic), type(self._traffic)
            self._end()
            self._traffic = kind(*last)
