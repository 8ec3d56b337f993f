"""One call of a ring: which chunks come and leave, how far that is, and what goes wrong."""

import json
import select
import time
from collections.abc import Iterator

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.collectives.collective import Form
from kofn.host.collectives.frames import CONTROL_BYTES, Connection, FrameKind, anywhere, wait_for
from kofn.host.collectives.neighbours import Neighbours
from kofn.host.errors import CollectiveError
from kofn.host.stopwatch import Stopwatch

CHUNK_BYTES = 128 << 10
"""Small enough for many to be on their way in a segment, and to stay in the cache between receiving and adding."""


class RingCall:
    """A worker's part in it: `flat` becomes the means.

    The chunks that leave are those of the worker's own segment, and then those that came, in the order in which they
    came, but for the last segment's: that has been everywhere.  A segment's means reach a worker only after all that
    this worker had to send of it was received, so they can be written where it was sent from.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        rank: int,
        workers: int,
        call: int,
        form: Form,
        flat: Floats,
        watch: Stopwatch,
    ) -> None:
        self._left, self._right = neighbours.both
        self._rank, self._workers, self._call, self._form, self._watch = rank, workers, call, form, watch
        steps = 2 * (workers - 1)
        coming = [_chunks(flat, workers, (rank - 1 - step) % workers) for step in range(steps)]
        own = _chunks(flat, workers, rank)
        self._coming = [chunk for segment in coming for chunk in segment]
        self._leaving = own + self._coming[: -len(coming[-1])]
        self._ahead = len(own)  # so many more chunks may have left than have come
        self._added = sum(map(len, coming[: workers - 1]))
        self._finished = self._added - len(coming[workers - 2])
        self._came = self._left_so_far = 0
        self._scratch = np.empty(max(map(len, self._coming)), np.float32)
        self._agreed = False
        self._culprit = self._left.rank
        """Who is waited for, as far as is known."""

    def run(self, timeout_s: float) -> Iterator[float]:
        """To the end; now and then the share that is done."""
        self._right.outgoing.put(FrameKind.CALL, json.dumps([self._call, self._form.shapes]).encode())
        moved_at = told_at = time.monotonic()
        place = self._reached
        while True:
            moved = self._move()
            yield self._came / len(self._coming)
            if self._done:
                return
            now = time.monotonic()
            if place != self._reached:
                place, moved_at = self._reached, now
            elif now - moved_at > timeout_s:
                raise CollectiveError(self._silence(timeout_s))
            elif not self._all_came and now - max(moved_at, told_at) > timeout_s / 4:
                told_at = now
                self._right.outgoing.put(FrameKind.WAITING, bytes([self._culprit]))
            if not moved:
                self._wait(timeout_s / 8)

    @property
    def _all_came(self) -> bool:
        return self._came == len(self._coming)

    @property
    def _reached(self) -> tuple[int, int]:
        """How far the call is; what leaves while something is waited for says nothing."""
        return self._came, self._right.outgoing.bytes if self._all_came else 0

    @property
    def _done(self) -> bool:
        """Whether all has come and left."""
        offered = self._left_so_far == len(self._leaving)
        return offered and self._all_came and not self._right.outgoing.pending

    def _move(self) -> bool:
        """Send and take what is possible now; whether there was anything."""
        before = self._right.outgoing.bytes, self._came
        self._watch.turn("send")
        self._offer()
        self._right.flush()
        self._watch.turn("receive")
        self._take()
        self._listen()
        self._watch.turn("wait")
        if self._right.gone and self._right.outgoing.pending:
            raise CollectiveError(self._reason(self._right, self._left))
        return before != (self._right.outgoing.bytes, self._came)

    def _offer(self) -> None:
        """What may leave by now."""
        ready = min(self._came + self._ahead, len(self._leaving))
        for chunk in self._leaving[self._left_so_far : ready]:
            self._right.outgoing.put(FrameKind.DATA, chunk.data)
        self._left_so_far = ready

    def _take(self) -> None:
        """What has come from the left; not what belongs to a later call.  A batch: what is added may leave then."""
        for _ in range(16):
            if self._all_came:
                return
            frame = self._left.read(self._place)
            if frame is None:
                if self._left.gone:
                    raise CollectiveError(self._reason(self._left, self._right))
                return
            self._understand(*frame)

    def _listen(self) -> None:
        """The right one speaks only to say that all is over."""
        while (frame := self._right.read(_aside)) is not None:
            kind, payload = frame
            if kind == FrameKind.ABORT:
                raise CollectiveError(str(payload, "utf-8", "replace"))
            raise CollectiveError(f"worker {self._right.rank} sends a frame of kind {kind} to the worker before it")

    def _place(self, kind: int, length: int) -> memoryview:
        """Values to be added go beside the array, finished ones into it."""
        if kind != FrameKind.DATA:
            return _aside(kind, length)
        chunk = self._coming[self._came]
        if length != chunk.nbytes or not self._agreed:
            raise CollectiveError(f"worker {self._left.rank} sends {length} bytes: {chunk.nbytes} are next")
        return (self._scratch[: len(chunk)] if self._came < self._added else chunk).data.cast("B")

    def _understand(self, kind: int, payload: memoryview) -> None:
        """A frame of the left one is here."""
        match kind:
            case FrameKind.CALL:
                self._agree(payload)
            case FrameKind.DATA:
                self._add()
            case FrameKind.WAITING:
                self._culprit = payload[0]
            case FrameKind.ABORT:
                raise CollectiveError(str(payload, "utf-8", "replace"))
            case _:
                raise CollectiveError(f"worker {self._left.rank} sends a frame of kind {kind} in the middle of a call")

    def _add(self) -> None:
        """A chunk is here: its values are added, those of the last step of the first half divided as well."""
        self._culprit = self._left.rank
        if self._came < self._added:
            self._watch.turn("sum")
            chunk = self._coming[self._came]
            chunk += self._scratch[: len(chunk)]
            if self._came >= self._finished:
                chunk /= self._workers
            self._watch.turn("receive")
        self._came += 1

    def _agree(self, payload: memoryview) -> None:
        """Whether the left one makes the same call."""
        call, shapes = json.loads(bytes(payload))
        theirs = Form(tuple(map(tuple, shapes)))
        if (call, theirs) != (self._call, self._form):
            raise CollectiveError(
                f"the workers' calls differ: worker {self._left.rank} gives {theirs} in call {call},"
                f" worker {self._rank} gives {self._form} in call {self._call}"
            )
        self._agreed = True

    def _wait(self, limit_s: float) -> None:
        """Until something comes, or something can leave."""
        wait_for(self._links(), limit_s)

    def _links(self) -> list[tuple[Connection, int]]:
        """What to wait for; a connection that ended is always ready, so it is left out."""
        right = select.POLLOUT if self._right.outgoing.pending else 0
        wanted = [(self._right, right | select.POLLIN)]
        if not self._all_came:
            wanted.append((self._left, select.POLLIN))
        return [(link, events) for link, events in wanted if not link.gone]

    def _reason(self, ended: Connection, other: Connection) -> str:
        """A connection has ended in mid-call: who is gone, or why, where the other neighbour has said that."""
        while (frame := other.read(_aside)) is not None:
            if frame[0] == FrameKind.ABORT:
                return str(frame[1], "utf-8", "replace")
        return f"worker {ended.rank} is gone: it has closed the connection"

    def _silence(self, timeout_s: float) -> str:
        if self._all_came:
            return f"worker {self._right.rank} has taken nothing for {timeout_s:g} s"
        return f"nothing has come for {timeout_s:g} s: worker {self._culprit} is waited for"


def _aside(kind: int, length: int) -> memoryview:
    """Where everything else goes that is not too long."""
    if length > CONTROL_BYTES:
        raise CollectiveError(f"a neighbour sends {length} bytes in a frame of kind {kind}: this is no ring of ours")
    return anywhere(kind, length)


def _chunks(flat: Floats, workers: int, segment: int) -> list[Floats]:
    begin, end = (len(flat) * at // workers for at in (segment, segment + 1))
    size = CHUNK_BYTES // 4
    return [flat[at : min(at + size, end)] for at in range(begin, end, size)]
