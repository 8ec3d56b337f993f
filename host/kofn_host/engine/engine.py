"""The engine of engine.c: a thread without Python that moves a worker's packets between a socket and the protocol core.

    engine = WorkerEngine(protocol, socket, pace)
    loop.add_reader(engine, news)
    ...
    def news(): follow(protocol.news())

The engine sends the protocol's packets.  The protocol's news() are all other instructions; the engine is readable when
there are news.  While a port has a reduction, the engine follows the instructions that the reduction can handle.
"""

import ctypes
import socket
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from kofn_common.gso import coalesced_bytes
from kofn_host import structs
from kofn_host.compression.reduction_native import NativeReduction
from kofn_host.engine.pacing_rate import PacingRate, pacer_fields
from kofn_host.errors import AgentError, HostError, ProtocolError
from kofn_host.protocol.core import Protocol
from kofn_host.protocol.instructions import Instruction


@dataclass(slots=True)
class Traffic:
    """Counters of the socket: UDP payload bytes, packets, and ignored datagrams by reason."""

    bytes_sent: int = 0
    bytes_received: int = 0
    packets_sent: int = 0
    packets_received: int = 0
    send_failures: int = 0
    short_packets: int = 0
    other_version: int = 0
    wrong_length: int = 0
    damaged: int = 0


class EnginePort(Protocol):
    """A Protocol that an engine may drive; its instructions then come from news() only."""

    engine: "WorkerEngine | None" = None
    port: ctypes.c_void_p | None = None
    reduction: NativeReduction | None = None
    """The engine thread's additional work; its ledger and sums may be touched only within held()."""

    def fileno(self) -> int:
        """Return a file descriptor that is readable when there is news."""
        found: int = self._call("news_fd")
        return found

    def news(self) -> list[Instruction]:
        """Take the new instructions; AgentError or ProtocolError if the engine has stopped."""
        return [] if self.engine is None else self._taken("take")

    def reduce(self, reduction: NativeReduction | None) -> NativeReduction | None:
        """Let the engine's thread run this reduction (None: none) from now on; return the previous one."""
        done, self.reduction = self.reduction, reduction
        if reduction is not None:
            self._kept.append(reduction)  # its contributions may be retransmitted until the next begin()
        if self.engine is not None and done is not reduction:
            self._call("reduce", reduction and ctypes.addressof(reduction))
        return done

    def await_means(self, first: int, end: int) -> None:
        """Await the means of blocks `first` to `end` of a reduction; no means if both are equal."""
        if self.engine is not None:
            self._call("await", first, end)

    def wake(self) -> None:
        """Note that the reduction's gradient has another piece."""
        if self.engine is not None and self.reduction is not None:
            self._call("wake")

    def set_pace(self, pace: PacingRate | None) -> None:
        """Change the rate at which the engine's packets leave; None: unpaced."""
        if self.engine is not None:
            self._call("rate", *pacer_fields(pace), time.monotonic())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock out the engine's thread inside the `with` block."""
        if self.engine is None:
            yield
            return
        self._call("hold")
        try:
            yield
        finally:
            self._call("release")

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the port's function of this name, which locks out the engine's thread."""
        if self.engine is None:
            return super()._call(name, *arguments)
        return getattr(self.library, f"port_{name}")(self.port, *arguments)

    def _take(self) -> list[Instruction]:
        """Return nothing: news() has the instructions."""
        return []

    def _fail(self) -> NoReturn:
        if self.engine is None:
            super()._fail()
        raise self.engine.error or ProtocolError(self._said)


class WorkerEngine:
    """An engine that runs until close(); its socket is connected to the switch, and the caller closes the socket.

    Up to `batch` closed blocks are reported together.  `exact_port`: another job with blocks of the same length; only
    the job's complete iterations are reported, not closed blocks.  `joins`: whether packets may be coalesced
    (transport.udp).

    AgentError without threads, memory or descriptors.
    """

    def __init__(
        self,
        protocol: EnginePort,
        opened: socket.socket,
        pace: PacingRate | None = None,
        *,
        batch: int = 1,
        exact_port: EnginePort | None = None,
        joins: bool = False,
    ) -> None:
        self._library = protocol.library
        self._protocols = [protocol] if exact_port is None else [protocol, exact_port]
        check_lengths(self._protocols)
        cores = (ctypes.c_void_p * 2)(*[port.address for port in self._protocols])
        batches = (ctypes.c_int64 * 2)(batch, 0)
        rate = pacer_fields(pace)
        most = coalesced_bytes(pace.mbps if pace else None) if joins else 0
        found = self._library.engine_open(cores, batches, len(self._protocols), opened.fileno(), *rate, most)
        if not found:
            raise AgentError("no thread, memory or file descriptors for the engine")
        self._engine = ctypes.c_void_p(found)
        self._end = weakref.finalize(self, self._library.engine_close, self._engine)
        self._traffic = structs.Traffic.from_address(self._call("traffic"))
        for at, port in enumerate(self._protocols):
            port.engine, port.port = self, ctypes.c_void_p(self._call("port", at))
        self._news_fd = protocol.fileno()

    def fileno(self) -> int:
        """Return a file descriptor that is readable when the protocol has news."""
        return self._news_fd

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the function of engine.h of this name."""
        return getattr(self._library, f"engine_{name}")(self._engine, *arguments)

    @property
    def error(self) -> HostError | None:
        """The error that has ended the thread; None if it runs."""
        said: str = self._call("error").decode()
        if not said:
            return None
        return (ProtocolError if self._call("error_is_cores") else AgentError)(said)

    @property
    def queued(self) -> int:
        """Packets that wait in the send queue."""
        queued: int = self._protocols[0]._call("queued")
        return queued

    def want(self, fewer: int) -> None:
        """Become readable once, when fewer than `fewer` contributions wait for the pacer or the window."""
        self._protocols[0]._call("want", fewer)

    @property
    def traffic(self) -> Traffic:
        return Traffic(**{field.name: getattr(self._traffic, field.name) for field in fields(Traffic)})

    def close(self) -> None:
        """End the thread; waiting packets are lost.  Further calls do nothing."""
        if self._end.alive:
            for port in self._protocols:
                port.engine = None
            last = structs.Traffic.from_buffer_copy(self._traffic)
            self._end()
            self._traffic = last


def check_lengths(protocols: Sequence[Protocol]) -> None:
    """Raise ProtocolError unless the longest results of all protocols have one length: buffers are shared."""
    words = [protocol.layout.words_most for protocol in protocols]
    if len(set(words)) != 1:
        raise ProtocolError(f"results of both jobs must have the same number of words, got {words[0]} and {words[1]}")
