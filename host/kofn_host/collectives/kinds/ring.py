"""Collectives over a ring of TCP connections, as in most frameworks.

Every worker sends only to the next worker.  An all-reduce divides the array into one segment per worker.  In its first
half (reduce-scatter) each segment goes round once, and every worker adds its own values; in its second half
(all-gather) the complete segments go round.  So a worker sends 2 (n - 1) / n of the array (Patarasuk and Yuan 2009).  A
reduce-scatter is the first half alone, an all-gather the second half alone.  A broadcast passes the whole array along
the ring.  Segments are sent in chunks.  A chunk leaves as soon as its values are added, so sending, receiving and
adding overlap.
"""

import contextlib
import socket
from collections.abc import Sequence

from kofn_host.collectives.call import Array
from kofn_host.collectives.communicator import Task
from kofn_host.collectives.meeting import listen
from kofn_host.collectives.passage import Passage, RingLink, Route
from kofn_host.collectives.peers import PeerCommunicator
from kofn_host.collectives.work import WorkOutcome
from kofn_host.errors import CollectiveError

_BUFFER_BYTES = 4 << 20
"""The size of a socket's buffer for sending, and of its buffer for receiving: more than a link has in flight."""


class Ring(PeerCommunicator):
    """A Communicator over connections to the two neighbours."""

    simulated = True
    _sockets: tuple[socket.socket, ...] = ()

    def _prepare(self, host: str) -> str:
        self._listening = listen((host, 0), 1)
        self._sockets = (self._listening,)
        _enlarge(self._listening)
        name: tuple[str, int] = self._listening.getsockname()
        return f"{name[0]}:{name[1]}"

    def _connect(self, cards: Sequence[str], secret: str, limit_s: float) -> None:
        before, after = ((self.rank + step) % self.workers for step in (-1, 1))
        host, _, port = cards[after].partition(":")
        right = socket.socket()
        self._sockets += (right,)
        _enlarge(right)
        right.settimeout(limit_s)
        right.connect((host, int(port)))
        right.sendall(secret.encode())
        left = self._accept(before, secret, limit_s)
        for link in (left, right):
            link.setblocking(False)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._left, self._right = RingLink(socket=left, rank=before), RingLink(socket=right, rank=after)

    def _accept(self, before: int, secret: str, limit_s: float) -> socket.socket:
        self._listening.settimeout(limit_s)
        try:
            left, _ = self._listening.accept()
            self._sockets += (left,)
            left.settimeout(limit_s)
            said = left.recv(len(secret), socket.MSG_WAITALL)
        except TimeoutError as error:
            raise CollectiveError(
                f"worker {before} must connect to worker {self.rank} within {limit_s:g} s, and has not"
            ) from error
        if said != secret.encode():
            raise CollectiveError(f"worker {self.rank} expected a connection of worker {before}, got another one")
        return left

    def _carry(self, task: Task) -> WorkOutcome[Array]:
        watch = task.watch
        watch.turn("encode")
        route, result = self._route(task)
        passage = Passage(self._left, self._right, route, watch)
        passage.run(self._timeout_s)
        watch.turn("decode")
        if result is not task.out:
            task.out[...] = result
        return WorkOutcome(
            value=task.out,
            count=self.workers,
            times=watch.times(),
            sent_bytes=passage.sent,
            received_bytes=passage.received,
        )

    def _route(self, task: Task) -> tuple[Route, Array]:
        """Return a call's route, and the array that holds the result after the passage."""
        call, given, out, n = task.call, task.given, task.out, self.workers
        divisor = n if call.op == "mean" else 1
        match call.kind:
            case "all_reduce":
                out[...] = given
                return Route.around(out.reshape(-1), n, self.rank, sums=True, shares=True, divisor=divisor), out
            case "reduce_scatter":
                rows = given.copy()
                route = Route.around(rows.reshape(-1), n, self.rank - 1, sums=True, shares=False, divisor=divisor)
                return route, rows[self.rank, ...]
            case "all_gather":
                out[self.rank] = given
                return Route.around(out.reshape(-1), n, self.rank, sums=False, shares=True), out
            case _:
                root = call.root or 0
                if self.rank == root:
                    out[...] = given
                return Route.along(out.reshape(-1), n, (self.rank - root) % n), out

    def _interrupt(self) -> None:
        for opened in self._sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _release(self) -> None:
        for opened in self._sockets:
            opened.close()


def _enlarge(opened: socket.socket) -> None:
    """Ask the kernel for buffers of _BUFFER_BYTES."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


ring = Ring
