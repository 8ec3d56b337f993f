"""The coordinator at worker 0 collects all workers' calls, and announces the next call, or the end.

It handles no arrays.  It ends when a worker is gone, when calls cannot be matched, or when worker 0 leaves.
"""

import selectors
import threading
import time
from collections.abc import Sequence

from kofn_common.running_clock import RunningClock
from kofn_host.collectives.call import Key, named
from kofn_host.collectives.matching import Matching, Mismatch
from kofn_host.collectives.messages import Agreed, Channel, Gone, Leaving, Message, Over, Ping, Posted, Trouble

FAREWELL_S = 0.5
"""The time for workers to read the last message: closing a channel with unread messages would lose the last message."""

GRACE_S = 1.0
"""The longest time for the answer to a Ping."""


class _End(Exception):  # noqa: N818  # leaves the loop, as StopIteration does
    """The end of the loop: the reason, and whether agreed calls fail too."""

    def __init__(self, reason: str, *, at_once: bool = True) -> None:
        super().__init__(reason)
        self.over = Over(reason=reason, at_once=at_once)


class Coordinator(threading.Thread):
    """The coordinator's thread; `channels`: by rank; `timeout_s`: the longest wait of a call for other workers."""

    def __init__(self, channels: Sequence[Channel], timeout_s: float) -> None:
        super().__init__(name="coordinator", daemon=True)
        self._channels = dict(enumerate(channels))
        self._timeout_s = timeout_s
        self._clock = RunningClock(4 * tick_s(timeout_s))
        self._matching = Matching(len(channels))
        self._notes: dict[Key, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._silence: _End | None = None
        """The end that waits for the answers to Pings; a worker that does not answer is blamed instead."""
        self._unheard: set[int] = set()
        self._verdict_s = 0.0

    def run(self) -> None:
        for rank, channel in self._channels.items():
            self._selector.register(channel.socket, selectors.EVENT_READ, rank)
        try:
            while True:
                for key, events in self._selector.select(tick_s(self._timeout_s)):
                    self._serve(key.data, events)
                self._check_deadlines(self._clock())
        except _End as end:
            self._finish(end.over)
        except Mismatch as mismatch:
            self._finish(Over(reason=str(mismatch), at_once=False))

    def _serve(self, rank: int, events: int) -> None:
        """Write and read a worker's channel; a worker that is slow to read its messages may still send calls."""
        if events & selectors.EVENT_WRITE:
            self._channels[rank].flush()
            self._watch(rank)
        if events & selectors.EVENT_READ:
            self._receive(rank)

    def _watch(self, rank: int) -> None:
        """Watch a channel for messages, and for room if messages wait to be sent."""
        channel = self._channels[rank]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.pending else 0)
        if self._selector.get_key(channel.socket).events != events:
            self._selector.modify(channel.socket, events, rank)

    def _receive(self, rank: int) -> None:
        """Handle all messages that a worker has sent."""
        try:
            for message in self._channels[rank].receive(0):
                self._take_message(rank, message)
        except Gone as gone:
            raise _End(f"worker {rank} is gone: its connection has ended") from gone

    def _take_message(self, rank: int, message: Message) -> None:
        match message:
            case Posted(key, call, note):
                agreed = self._matching.post(rank, key, call, self._clock())
                self._notes[key] = largest_of(note, self._notes.get(key, note))
                if agreed:
                    self._tell_all(Agreed(key=key, note=self._notes.pop(key)))
            case Ping():
                self._unheard.discard(rank)
            case Trouble(reason, silent, late):
                if not silent:
                    raise _End(reason)
                absent = "" if late is None else self._matching.absent(late)
                self._ping_all(_End(f"{reason}; not made by {absent}" if absent else reason))
            case Leaving():
                self._let_go(rank)
            case _:
                raise _End(f"worker {rank} sends a message that only worker 0 may send: {message}")

    def _ping_all(self, silence: _End) -> None:
        """Ping all workers before blaming one of them."""
        if self._silence is None:
            self._silence, self._unheard = silence, set(self._channels)
            self._verdict_s = self._clock() + grace_s(self._timeout_s)
            self._tell_all(Ping())

    def _let_go(self, rank: int) -> None:
        if rank == 0:
            raise _End("worker 0 has closed its communicator", at_once=False)
        channel = self._channels.pop(rank)
        self._unheard.discard(rank)
        self._selector.unregister(channel.socket)
        channel.close()
        self._matching.leave(rank)

    def _check_deadlines(self, now_s: float) -> None:
        """End if a call is overdue, or once the Pings are answered or have timed out."""
        if overdue := self._matching.overdue(now_s, self._timeout_s):
            self._ping_all(_End(overdue, at_once=False))
        if self._silence is not None and not self._unheard:
            raise self._silence
        if self._silence is not None and now_s > self._verdict_s:
            raise _End(f"no answer from {named(sorted(self._unheard))}: {self._silence.over.reason}")

    def _tell_all(self, message: Message) -> None:
        for rank, channel in self._channels.items():
            channel.put(message)
            self._watch(rank)

    def _finish(self, message: Over) -> None:
        """Send the end to all workers, and wait until they have read it."""
        self._tell_all(message)
        deadline = time.monotonic() + FAREWELL_S
        for channel in self._channels.values():
            channel.finish(max(0.0, deadline - time.monotonic()))
        for channel in self._channels.values():
            channel.drain(deadline)
            channel.close()
        self._selector.close()


def largest_of(note: bytes, other: bytes) -> bytes:
    """Return the larger number of two notes at each place."""
    return bytes(map(max, note, other))


def grace_s(timeout_s: float) -> float:
    """Return the time for the answer to a Ping."""
    return min(GRACE_S, timeout_s / 4)


def tick_s(timeout_s: float) -> float:
    """Return the interval between two checks of time-outs."""
    return grace_s(timeout_s) / 4
