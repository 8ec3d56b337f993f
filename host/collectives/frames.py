"""Frames over TCP sockets that never block: a kind, a length, and as many bytes.

Knows nothing of what is in them.
"""

import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum

HEAD = struct.Struct("!B3xI")
"""Kind and length."""

CONTROL_BYTES = 1 << 20
"""The longest frame that is no DATA."""

_AT_ONCE = 16
"""Pieces that one call hands to the kernel."""


class FrameKind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    CALL = 2
    DATA = 3
    WAITING = 4
    ABORT = 5


Frame = tuple[int, memoryview]
"""Kind and payload."""

Place = Callable[[int, int], memoryview]
"""Where the payload of a frame of this kind and length belongs; as long as that."""


class Gone(Exception):  # noqa: N818  # an event of the connection, not yet anybody's error
    """The other end has closed the connection, or it broke."""


class Outgoing:
    """Frames that leave through a socket, in order, as it takes them; payloads are not copied."""

    def __init__(self, connected: socket.socket) -> None:
        self.bytes = 0
        """That have left."""
        self._socket = connected
        self._pieces: deque[memoryview] = deque()

    @property
    def pending(self) -> bool:
        """Whether something has not left yet."""
        return bool(self._pieces)

    def put(self, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        """A frame more; its payload must stay as it is until it has left."""
        content = memoryview(payload).cast("B")
        self._pieces.append(memoryview(HEAD.pack(kind, len(content))))
        if content:
            self._pieces.append(content)

    def flush(self) -> None:
        """As much as the socket takes now; Gone where there is nobody to take it."""
        try:
            while self._pieces:
                pieces = [self._pieces[at] for at in range(min(_AT_ONCE, len(self._pieces)))]
                self._left(self._socket.sendmsg(pieces))
        except BlockingIOError:
            return
        except OSError as error:
            raise Gone from error

    def _left(self, size: int) -> None:
        """So many bytes are with the kernel."""
        self.bytes += size
        while self._pieces and size >= len(self._pieces[0]):
            size -= len(self._pieces.popleft())
        if size:
            self._pieces[0] = self._pieces[0][size:]


class Incoming:
    """Frames that come through a socket, in order."""

    def __init__(self, connected: socket.socket) -> None:
        self.bytes = 0
        """That have come."""
        self._socket = connected
        self._head = memoryview(bytearray(HEAD.size))
        self._kind = 0
        self._payload: memoryview | None = None  # None: a head is awaited
        self._rest = self._head  # what is to be filled next

    def read(self, place: Place) -> Frame | None:
        """The next frame, if all of it is here; Gone once there will be no more."""
        while True:
            if not self._rest:
                if self._payload is not None:
                    frame = self._kind, self._payload
                    self._payload, self._rest = None, self._head
                    return frame
                self._kind, length = HEAD.unpack(self._head)
                self._payload = self._rest = place(self._kind, length)
            elif not self._fill():
                return None

    def _fill(self) -> bool:
        """Take what is there; whether there was anything."""
        try:
            size = self._socket.recv_into(self._rest)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Gone from error
        if not size:
            raise Gone
        self.bytes += size
        self._rest = self._rest[size:]
        return True


class Connection:
    """A connection to a neighbour, with frames both ways."""

    def __init__(self, connected: socket.socket, rank: int) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rank, self.socket = rank, connected
        self.outgoing, self.incoming = Outgoing(connected), Incoming(connected)
        self.gone = False
        """Whether nothing can be sent or read any more."""

    def flush(self) -> None:
        """Send what can be sent."""
        if not self.gone:
            try:
                self.outgoing.flush()
            except Gone:
                self.gone = True

    def read(self, place: Place) -> Frame | None:
        """A frame, if there is one; what came before the end is still read."""
        with contextlib.suppress(Gone):
            return self.incoming.read(place)
        self.gone = True
        return None

    def close(self) -> None:
        self.socket.close()


def anywhere(kind: int, length: int) -> memoryview:
    """A Place for frames that nobody has a place for."""
    return memoryview(bytearray(length))


def wait_for(links: Sequence[tuple[Connection, int]], limit_s: float) -> None:
    """Until one of these is ready for its events."""
    poll = select.poll()
    for link, events in links:
        poll.register(link.socket, events)
    poll.poll(1e3 * limit_s)


def flush_all(links: Sequence[Connection], limit_s: float) -> None:
    """Send what waits, to those who take it in time."""
    deadline = time.monotonic() + limit_s
    while True:
        for link in links:
            link.flush()
        waiting = [(link, select.POLLOUT) for link in links if link.outgoing.pending and not link.gone]
        rest_s = deadline - time.monotonic()
        if not waiting or rest_s <= 0:
            return
        wait_for(waiting, rest_s)
