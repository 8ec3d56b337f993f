"""The messages between a worker and worker 0 about calls, over a stream socket.  These messages contain no arrays."""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from kofn_host.collectives.call import Key

_LENGTH = struct.Struct("!I")

MESSAGE_BYTES = 1 << 20
"""The size limit of a message."""

_READ_BYTES = 1 << 16


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A worker's identity and its communicator; `card`: the worker's data for the other workers."""

    kind: str
    job: int
    workers: int
    rank: int
    card: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """All workers have come: their cards by rank, and a secret of this meeting."""

    cards: tuple[str, ...]
    secret: str


class Posted(msgspec.Struct, frozen=True, tag=True):
    """A worker has made a call.

    `note`: 8-bit numbers; the notes of all workers have the same length.  All workers get the largest number at each
    place of the notes.
    """

    key: Key
    call: str
    note: bytes = b""


class Agreed(msgspec.Struct, frozen=True, tag=True):
    """All workers have made this call; calls are carried out in the order of these messages.

    `note`: the largest numbers in all workers' notes.
    """

    key: Key
    note: bytes = b""


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot carry out a call; `silent`: nothing moves in the call, and any worker may be the cause.

    `key`: the call that lasts too long, if a call does.
    """

    reason: str
    silent: bool
    key: Key | None = None


class Ping(msgspec.Struct, frozen=True, tag=True):
    """A liveness check, answered by another Ping."""


class Over(msgspec.Struct, frozen=True, tag=True):
    """Calls fail: with `at_once` all calls, otherwise only the calls that are not agreed yet."""

    reason: str
    at_once: bool = True


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The sender makes no more calls, and has no call under way."""


Message: TypeAlias = Hello | Welcome | Posted | Agreed | Trouble | Ping | Over | Leaving

_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


class Gone(Exception):  # noqa: N818  # an event of the connection, handled by the caller
    """The connection was closed, or broke, or the received bytes are not a message."""


class Channel:
    """Messages in both directions; any thread may send, one thread receives.  `limit_s`: the time limit of sending."""

    def __init__(self, connected: socket.socket, limit_s: float) -> None:
        if connected.family == socket.AF_INET:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(limit_s)
        self.socket = connected
        self._sending = threading.Lock()
        self._unread, self._unsent = bytearray(), bytearray()
        self._readable = select.poll()
        self._readable.register(connected, select.POLLIN)

    def send(self, message: Message) -> None:
        """Send a message; if the connection is lost, receive() reports this."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(_packed(message))

    def put(self, message: Message) -> None:
        """Queue a message without waiting; do not mix with send()."""
        self._unsent += _packed(message)
        self.flush()

    def flush(self) -> None:
        """Send queued bytes while the socket has room."""
        self.socket.setblocking(False)
        with contextlib.suppress(OSError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]

    @property
    def pending(self) -> bool:
        """Whether queued bytes wait for room."""
        return bool(self._unsent)

    def receive(self, limit_s: float) -> list[Message]:
        """Return received messages, after waiting up to `limit_s` for the first bytes; Gone if the connection ended."""
        if not (whole := list(self._whole())):
            self._read(limit_s)
            whole = list(self._whole())
        return whole

    def first(self, limit_s: float) -> Message:
        """Return the next message; Gone if it does not come in time."""
        deadline = time.monotonic() + limit_s
        while (message := next(self._whole(), None)) is None:
            if time.monotonic() > deadline:
                raise Gone
            self._read(deadline - time.monotonic())
        return message

    def finish(self, limit_s: float) -> None:
        """Send the queued bytes, and shut down sending."""
        with contextlib.suppress(OSError):
            self.socket.settimeout(limit_s)
            self.socket.sendall(self._unsent)
            self.socket.shutdown(socket.SHUT_WR)

    def drain(self, deadline: float) -> None:
        """Read until the other end has closed: otherwise messages to it could be lost."""
        with contextlib.suppress(Gone):
            while time.monotonic() < deadline:
                self._read(deadline - time.monotonic())
                self._unread.clear()

    def close(self) -> None:
        with self._sending:
            self.socket.close()

    def _read(self, limit_s: float) -> None:
        """Read available bytes, after waiting up to `limit_s`."""
        try:
            read = self.socket.recv(_READ_BYTES) if self._readable.poll(1e3 * max(0.0, limit_s)) else None
        except BlockingIOError:
            return
        except OSError as error:
            raise Gone from error
        if read == b"":
            raise Gone
        self._unread += read or b""

    def _whole(self) -> Iterator[Message]:
        while len(self._unread) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._unread)
            if size > MESSAGE_BYTES:
                raise Gone
            end = _LENGTH.size + size
            if len(self._unread) < end:
                return
            try:
                message: Message = _decoder.decode(self._unread[_LENGTH.size : end])
            except ValueError as error:
                raise Gone from error
            del self._unread[:end]
            yield message


def _packed(message: Message) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data
