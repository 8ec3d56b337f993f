"""The two neighbours of a worker in a ring over TCP: who it listens to and who it sends to."""

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kofn.host.collectives.frames import Connection, FrameKind, Gone, Incoming, Outgoing, anywhere
from kofn.host.errors import CollectiveError
from kofn.host.wire.packet import FORWARDED_PORT

_AGAIN_S = 0.02
"""Between two attempts to connect to a neighbour that does not listen yet."""

_BUFFER_BYTES = 4 << 20
"""Of a socket, each way: more than a link has on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """`left` is who this worker takes from, `right` who it sends to: the ranks before and after it."""

    left: Connection
    right: Connection

    @property
    def both(self) -> tuple[Connection, Connection]:
        return self.left, self.right

    def close(self) -> None:
        self.left.close()
        self.right.close()


def meet(rank: int, addresses: Sequence[str], job: int, timeout_s: float) -> Neighbours:
    """Connect to the next worker and be connected to by the one before; `addresses`: HOST or HOST:PORT by rank,
    wire.FORWARDED_PORT where there is none.

    CollectiveError when a neighbour does not come in time, or comes from somewhere else.
    """
    workers, deadline = len(addresses), time.monotonic() + timeout_s
    before, after = (rank - 1) % workers, (rank + 1) % workers
    hello = json.dumps({"job": job, "rank": rank, "workers": workers}).encode()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _enlarge(listening)
        listening.bind(_place(addresses[rank]))
        listening.listen()
        right = _connected(_place(addresses[after]), after, deadline)
        try:
            _say(right, hello)
            left = _accepted(listening, before, deadline)
        except BaseException:
            right.close()
            raise
    try:
        _check(_heard(left, before), before, job, workers)
    except BaseException:
        left.close()
        right.close()
        raise
    return Neighbours(left=Connection(left, before), right=Connection(right, after))


def _place(address: str) -> tuple[str, int]:
    host, colon, port = address.partition(":")
    return host, int(port) if colon else FORWARDED_PORT


def _enlarge(opened: socket.socket) -> None:
    """Room for what is on its way."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def _connected(place: tuple[str, int], rank: int, deadline: float) -> socket.socket:
    """To the next worker, as soon as it listens."""
    while True:
        connecting = socket.socket()
        _enlarge(connecting)
        connecting.settimeout(max(_AGAIN_S, deadline - time.monotonic()))
        try:
            connecting.connect(place)
        except OSError as error:
            connecting.close()
            if time.monotonic() + _AGAIN_S > deadline:
                raise CollectiveError(f"worker {rank} cannot be reached at {place[0]}:{place[1]}: {error}") from error
            time.sleep(_AGAIN_S)
        else:
            return connecting


def _accepted(listening: socket.socket, rank: int, deadline: float) -> socket.socket:
    listening.settimeout(max(_AGAIN_S, deadline - time.monotonic()))
    try:
        accepted, _ = listening.accept()
    except TimeoutError as error:
        raise CollectiveError(f"worker {rank} has not come") from error
    accepted.settimeout(max(_AGAIN_S, deadline - time.monotonic()))
    return accepted


def _say(connected: socket.socket, hello: bytes) -> None:
    """Who this is; a new connection takes so few bytes at once."""
    outgoing = Outgoing(connected)
    outgoing.put(FrameKind.HELLO, hello)
    outgoing.flush()


def _heard(connected: socket.socket, rank: int) -> bytes:
    """What the worker before says."""
    try:
        frame = Incoming(connected).read(anywhere)
    except Gone as error:
        raise CollectiveError(f"worker {rank} has come, and said nothing") from error
    return bytes(frame[1]) if frame else b""


def _check(hello: bytes, rank: int, job: int, workers: int) -> None:
    """That it is the one that was waited for."""
    expected = {"job": job, "rank": rank, "workers": workers}
    try:
        said = json.loads(hello)
    except ValueError:
        said = None
    if said != expected:
        raise CollectiveError(f"someone has come who says {hello[:100]!r}: {expected} is allowed")
