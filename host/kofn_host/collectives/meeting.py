"""The meeting of workers: all workers connect to worker 0, which sends all cards to all workers."""

import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from kofn_common.numerals import is_numeral
from kofn_common.wire.packet import FORWARDED_PORT
from kofn_host.collectives.call import named
from kofn_host.collectives.messages import Channel, Gone, Hello, Over, Welcome
from kofn_host.errors import CollectiveError

_AGAIN_S = 0.02
"""The pause between two attempts to connect to worker 0, which may not listen yet."""

M = TypeVar("M", Hello, Welcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The outcome of a meeting.

    `own`: this worker's channel to the coordinator; `channels`: at worker 0, the coordinator's channels to all workers,
    by rank.
    """

    own: Channel
    channels: tuple[Channel, ...]
    welcome: Welcome


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of HOST or HOST:PORT."""
    host, colon, port = address.partition(":")
    if colon and not (is_numeral(port) and 1 <= int(port) <= 65535):
        raise CollectiveError(f"an address must be HOST or HOST:PORT, with a port from 1 to 65535, got {address!r}")
    return host, int(port) if colon else FORWARDED_PORT


def listen(place: tuple[str, int], backlog: int) -> socket.socket:
    """Listen at this address; CollectiveError if it is unavailable."""
    try:
        return socket.create_server(place, backlog=backlog)
    except OSError as error:
        raise CollectiveError(f"cannot listen at {place[0]}:{place[1]}: {error}") from error


def meet(addresses: Sequence[str], hello: Hello, *, meet_s: float, limit_s: float) -> Meeting:
    """Wait until all workers have come; CollectiveError names the workers missing after `meet_s`, or a wrong peer.

    `limit_s`: the channels' time limit.
    """
    place = place_of(addresses[0])
    if hello.rank == 0:
        return _Reception(place, hello, meet_s, limit_s).meet()
    deadline = time.monotonic() + meet_s
    own = Channel(_connect(place, place_of(addresses[hello.rank])[0], deadline), limit_s)
    try:
        own.send(hello)
        welcome = _expect(own, Welcome, deadline, f"worker 0 says nothing for {meet_s:g} s")
    except BaseException:
        own.close()
        raise
    return Meeting(own=own, channels=(), welcome=welcome)


def _connect(place: tuple[str, int], host: str, deadline: float) -> socket.socket:
    """Connect to worker 0 as soon as it listens, from this worker's own address."""
    while True:
        try:
            return socket.create_connection(place, max(_AGAIN_S, deadline - time.monotonic()), (host, 0))
        except OSError as error:
            if time.monotonic() + _AGAIN_S > deadline:
                raise CollectiveError(f"worker 0 cannot be reached at {place[0]}:{place[1]}: {error}") from error
            time.sleep(_AGAIN_S)


class _Reception:
    """Worker 0's side of a meeting: the other workers connect by TCP, worker 0 through a pair of sockets."""

    def __init__(self, place: tuple[str, int], hello: Hello, meet_s: float, limit_s: float) -> None:
        self._place, self._hello, self._meet_s, self._limit_s = place, hello, meet_s, limit_s
        self._deadline = time.monotonic() + meet_s
        own, theirs = socket.socketpair()
        self._own = Channel(own, limit_s)
        self._come = {0: (Channel(theirs, limit_s), hello)}

    def meet(self) -> Meeting:
        try:
            with listen(self._place, self._hello.workers) as listening:
                while len(self._come) < self._hello.workers:
                    self._receive(listening)
        except BaseException as error:
            self._dismiss(str(error))
            raise
        channels, hellos = zip(*(self._come[rank] for rank in range(self._hello.workers)), strict=True)
        welcome = Welcome(cards=tuple(hello.card for hello in hellos), secret=secrets.token_hex(16))
        for channel in channels[1:]:
            channel.send(welcome)
        return Meeting(own=self._own, channels=channels, welcome=welcome)

    def _receive(self, listening: socket.socket) -> None:
        """Receive the next worker."""
        listening.settimeout(max(_AGAIN_S, self._deadline - time.monotonic()))
        try:
            accepted, _ = listening.accept()
        except TimeoutError as error:
            raise CollectiveError(self._absent()) from error
        channel = Channel(accepted, self._limit_s)
        try:
            hello = _expect(channel, Hello, self._deadline, "a connected peer has sent nothing valid")
            self._check(hello)
        except CollectiveError as error:
            channel.send(Over(reason=str(error)))
            channel.close()
            raise
        self._come[hello.rank] = channel, hello

    def _check(self, hello: Hello) -> None:
        """Raise CollectiveError unless a peer belongs to this meeting, and is the first of its rank."""
        own = self._hello
        if hello != replace(own, rank=hello.rank, card=hello.card) or hello.rank not in self._missing:
            raise CollectiveError(
                f"a peer must be one of workers {self._missing} of {own.workers} of a {own.kind} of job {own.job}, got"
                f" worker {hello.rank} of {hello.workers} of a {hello.kind} of job {hello.job}"
            )

    def _absent(self) -> str:
        host, port = self._place
        return f"{named(self._missing)} did not come to worker 0 at {host}:{port} in {self._meet_s:g} s"

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in range(self._hello.workers) if rank not in self._come]

    def _dismiss(self, reason: str) -> None:
        for channel, _ in self._come.values():
            channel.send(Over(reason=reason))
            channel.close()
        self._own.close()


def _expect(channel: Channel, kind: type[M], deadline: float, silent: str) -> M:
    """Return the first message, which must be of this kind; CollectiveError with the text `silent` if none comes."""
    try:
        message = channel.first(max(_AGAIN_S, deadline - time.monotonic()))
    except Gone as error:
        raise CollectiveError(silent) from error
    if isinstance(message, Over):
        raise CollectiveError(message.reason)
    if not isinstance(message, kind):
        raise CollectiveError(f"{silent}: the first message must be a {kind.__name__}, got {message}")
    return message
