"""The passage of a call's chunks through a worker of a ring, from its left to its right neighbour.

A chunk may be added to the worker's values on the way.  Neighbours know which bytes come next, so only values are sent.
"""

import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kofn_common.running_clock import RunningClock
from kofn_host.collectives.call import Array
from kofn_host.collectives.peers import Stalled
from kofn_host.errors import CollectiveError
from kofn_host.stopwatch import Stopwatch

CHUNK_BYTES = 128 << 10
"""The size of a chunk: so small that a segment has many chunks, and that a chunk stays in the cache between receiving
and adding."""

_AT_ONCE = 16
"""The most chunks that one call hands to the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A call's incoming and outgoing chunks, which are views of one array.

    The first `added` incoming chunks are added to the array's values; the other incoming chunks replace the array's
    values.  Incoming chunks from `finished` to `added` are complete sums, and are divided by `divisor`.  At first
    `ahead` outgoing chunks may leave, and each incoming chunk allows one more outgoing chunk.
    """

    coming: Sequence[Array]
    leaving: Sequence[Array]
    ahead: int
    added: int = 0
    finished: int = 0
    divisor: int = 1

    @classmethod
    def around(cls, flat: Array, workers: int, first: int, *, sums: bool, shares: bool, divisor: int = 1) -> "Route":
        """Return a route over all segments of a flat array, backwards from segment `first`, which leaves first.

        With n workers, `sums`: n - 1 incoming segments are added, and the last of these is then complete
        (reduce-scatter); `shares`: n - 1 incoming segments are complete (all-gather).
        """
        steps = (workers - 1) * (sums + shares)
        own, *others = (chunks(flat, workers, (first - step) % workers) for step in range(steps + 1))
        coming = [chunk for segment in others for chunk in segment]
        added = sum(map(len, others[: workers - 1])) if sums else 0
        finished = added - len(others[workers - 2]) if added else 0
        leaving = (own + coming)[: len(own) + len(coming) - len((own, *others)[-1])]
        return cls(coming=coming, leaving=leaving, ahead=len(own), added=added, finished=finished, divisor=divisor)

    @classmethod
    def along(cls, flat: Array, workers: int, distance: int) -> "Route":
        """Return the route from a root through all workers; this worker is `distance` places behind the root."""
        whole = chunks(flat, 1, 0)
        return cls(
            coming=whole if distance else [],
            leaving=whole if distance < workers - 1 else [],
            ahead=0 if distance else len(whole),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLink:
    """A connection to a neighbour, with a non-blocking socket."""

    socket: socket.socket
    rank: int


class Passage:
    """Moves a route's chunks.

    A complete segment reaches a worker only after the neighbour has received the worker's own chunks of that segment,
    so the complete segment can overwrite these chunks.
    """

    def __init__(self, left: RingLink, right: RingLink, route: Route, watch: Stopwatch) -> None:
        self._left, self._right, self._route, self._watch = left, right, route, watch
        self._came = self._gone = 0
        """Numbers of complete incoming and outgoing chunks."""
        self._sent_of_next = 0
        dtype = route.coming[0].dtype if route.coming else np.dtype(np.uint8)
        self._scratch = np.empty(max(map(len, route.coming), default=0) if route.added else 0, dtype)
        self._space = memoryview(b"")
        """The memory for the next received bytes."""
        self.received = self.sent = 0
        """Numbers of bytes."""

    def run(self, timeout_s: float) -> None:
        """Run to the end; Stalled if nothing moves for `timeout_s`, CollectiveError if a neighbour is gone."""
        self._expect()
        clock = RunningClock(timeout_s / 4)
        moved_s = clock()
        while not self._done:
            if self._move():
                moved_s = clock()
            elif clock() - moved_s > timeout_s:
                raise Stalled(self._silence(timeout_s))
            else:
                self._wait(timeout_s / 8)

    @property
    def _all_came(self) -> bool:
        return self._came == len(self._route.coming)

    @property
    def _done(self) -> bool:
        return self._all_came and self._gone == len(self._route.leaving)

    @property
    def _ready(self) -> int:
        """The number of chunks that may have left by now."""
        return min(self._came + self._route.ahead, len(self._route.leaving))

    def _move(self) -> bool:
        """Send and receive without waiting; return whether any bytes moved."""
        before = self.sent + self.received
        self._watch.turn("send")
        self._send()
        self._watch.turn("receive")
        self._receive()
        self._watch.turn("wait")
        return self.sent + self.received > before

    def _send(self) -> None:
        while self._gone < self._ready:
            pieces = [
                _bytes(chunk) for chunk in self._route.leaving[self._gone : min(self._ready, self._gone + _AT_ONCE)]
            ]
            pieces[0] = pieces[0][self._sent_of_next :]
            try:
                size = self._right.socket.sendmsg(pieces)
            except BlockingIOError:
                return
            except OSError as error:
                raise _gone(self._right) from error
            self._left_with(size, pieces)

    def _left_with(self, size: int, pieces: Sequence[memoryview]) -> None:
        """Record that the kernel has accepted `size` bytes of these pieces."""
        self.sent += size
        for piece in pieces:
            if size < len(piece):
                self._sent_of_next += size
                return
            size -= len(piece)
            self._gone += 1
            self._sent_of_next = 0

    def _receive(self) -> None:
        """Receive at most a batch of chunks, so that their sums can leave before more chunks are received."""
        batch = self._came + _AT_ONCE
        while not self._all_came and self._came < batch:
            try:
                size = self._left.socket.recv_into(self._space)
            except BlockingIOError:
                return
            except OSError as error:
                raise _gone(self._left) from error
            if not size:
                raise _gone(self._left)
            self.received += size
            self._space = self._space[size:]
            if not self._space:
                self._settle()

    def _expect(self) -> None:
        """Set the memory for the next chunk: scratch for values that are added, the array for values that replace."""
        if not self._all_came:
            chunk = self._route.coming[self._came]
            self._space = _bytes(self._scratch[: len(chunk)] if self._came < self._route.added else chunk)

    def _settle(self) -> None:
        """Handle a received chunk."""
        route, chunk = self._route, self._route.coming[self._came]
        if self._came < route.added:
            self._watch.turn("sum")
            np.add(chunk, self._scratch[: len(chunk)], out=chunk)
            if self._came >= route.finished and route.divisor > 1:
                np.divide(chunk, chunk.dtype.type(route.divisor), out=chunk)
            self._watch.turn("receive")
        self._came += 1
        self._expect()

    def _wait(self, limit_s: float) -> None:
        """Wait until bytes arrive that this worker needs, or until bytes can leave."""
        poll = select.poll()
        if not self._all_came:
            poll.register(self._left.socket, select.POLLIN)
        if self._gone < self._ready:
            poll.register(self._right.socket, select.POLLOUT)
        poll.poll(1e3 * limit_s)

    def _silence(self, timeout_s: float) -> str:
        if self._all_came:
            return f"worker {self._right.rank} has taken nothing for {timeout_s:g} s"
        return f"nothing has come from worker {self._left.rank} for {timeout_s:g} s"


def chunks(flat: Array, parts: int, part: int) -> list[Array]:
    """Return the chunks of one of `parts` parts of a flat array; no chunk is empty."""
    begin, end = (len(flat) * at // parts for at in (part, part + 1))
    size = CHUNK_BYTES // flat.itemsize
    return [flat[at : min(at + size, end)] for at in range(begin, end, size)]


def _bytes(chunk: Array) -> memoryview:
    return chunk.view(np.uint8).data


def _gone(link: RingLink) -> CollectiveError:
    return CollectiveError(f"worker {link.rank} is gone: it has closed the connection")
