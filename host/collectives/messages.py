"""What a worker and worker 0 tell each other of their calls, over a stream socket; no array is in it."""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from kofn.host.collectives.call import Key

_LENGTH = struct.Struct("!I")

MESSAGE_BYTES = 1 << 20
"""The longest message."""

_READ_BYTES = 1 << 16


class Hello(msgspec.Struct, frozen=True, tag=True):
    """Who has come, to which communicator; `card`: what the others need to know of it."""

    kind: str
    job: int
    workers: int
    rank: int
    card: str


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """All are there: their cards by rank, and a secret of this meeting."""

    cards: tuple[str, ...]
    secret: str


class Posted(msgspec.Struct, frozen=True, tag=True):
    """A worker has made a call.

    `note`: numbers of a byte, as many at every worker; all are told the largest of each.
    """

    key: Key
    call: str
    note: bytes = b""


class Agreed(msgspec.Struct, frozen=True, tag=True):
    """All workers have made this call; the order of these messages is that in which calls are carried out.

    `note`: the largest numbers of all workers' notes.
    """

    key: Key
    note: bytes = b""


class Trouble(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot carry a call out; `silent`: because nothing moves, and that may be anybody's fault."""

    reason: str
    silent: bool


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Whoever lives answers it by the same."""


class Over(msgspec.Struct, frozen=True, tag=True):
    """Calls fail: all of them `at_once`, else those that are not agreed on by now."""

    reason: str
    at_once: bool = True


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """The sender makes no more calls, and has none under way."""


Message: TypeAlias = Hello | Welcome | Posted | Agreed | Trouble | Ping | Over | Leaving

_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


class Gone(Exception):  # noqa: N818  # an event of the connection, not yet anybody's error
    """The other end has closed the connection, it broke, or what comes is no message."""


class Channel:
    """Messages both ways; any thread may send, one receives.  `limit_s`: for the other end to take something."""

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
        """Of an end that is gone receive() tells."""
        with self._sending, contextlib.suppress(OSError):
            self.socket.sendall(_packed(message))

    def put(self, message: Message) -> None:
        """Send it when there is room: for one who must not wait, and does not send()."""
        self._unsent += _packed(message)
        self.flush()

    def flush(self) -> None:
        """What there is room for."""
        self.socket.setblocking(False)
        with contextlib.suppress(OSError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]

    @property
    def pending(self) -> bool:
        """Whether something waits for room."""
        return bool(self._unsent)

    def receive(self, limit_s: float) -> list[Message]:
        """Those that have come, after a wait for the first one's bytes; Gone where no more will come."""
        if not (whole := list(self._whole())):
            self._read(limit_s)
            whole = list(self._whole())
        return whole

    def first(self, limit_s: float) -> Message:
        """The next one; Gone where it does not come in time."""
        deadline = time.monotonic() + limit_s
        while (message := next(self._whole(), None)) is None:
            if time.monotonic() > deadline:
                raise Gone
            self._read(deadline - time.monotonic())
        return message

    def finish(self, limit_s: float) -> None:
        """Nothing more is sent than what waits."""
        with contextlib.suppress(OSError):
            self.socket.settimeout(limit_s)
            self.socket.sendall(self._unsent)
            self.socket.shutdown(socket.SHUT_WR)

    def drain(self, deadline: float) -> None:
        """Until the other end has closed: what was sent to it would be lost otherwise."""
        with contextlib.suppress(Gone):
            while time.monotonic() < deadline:
                self._read(deadline - time.monotonic())
                self._unread.clear()

    def close(self) -> None:
        with self._sending:
            self.socket.close()

    def _read(self, limit_s: float) -> None:
        """What is there, after a wait for something."""
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
            except msgspec.DecodeError as error:
                raise Gone from error
            del self._unread[:end]
            yield message


def _packed(message: Message) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data
