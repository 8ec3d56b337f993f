"""Which entries no packet hit for as long as their idle timeout.

The native part notes each entry's last hit; here is a queue of the times at which to look.  Time is the switch's, in
microseconds.
"""

from collections.abc import Callable
from ctypes import c_uint64
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kofn.switch.state.entries import Entry

QUEUE_MIN = 64


@dataclass(slots=True)
class _Watched:
    """An entry, when it was hit last, and since when it counts as idle if it was not hit."""

    entry: Entry
    last_hit_us: c_uint64  # in the native table
    inserted_us: int
    since_us: int
    turn: int  # of its place in the queue; another one's is out of date

    @property
    def timeout_us(self) -> int:
        return max(1, self.entry.idle_timeout_ns // 1000)


class IdleTimeouts:
    """The entries of tables that have idle timeouts, by table and place."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._watched: dict[tuple[str, int], _Watched] = {}
        self._queue: list[tuple[int, int, tuple[str, int]]] = []  # (when to look, turn, which)
        self._turns = 0

    def watch(self, entry: Entry, number: int, last_hit_us: c_uint64) -> None:
        """From now on, or again with another timeout."""
        now, which = self._now_us(), (entry.table, number)
        before = self._watched.get(which)
        inserted = now if before is None else before.inserted_us
        self._watched[which] = _Watched(entry, last_hit_us, inserted, now, 0)
        if entry.idle_timeout_ns:
            self._schedule(which, now)

    def forget(self, table: str, number: int) -> None:
        self._watched.pop((table, number), None)

    def elapsed_ns(self, table: str, number: int) -> int:
        """Since a packet hit the entry, or since it was inserted."""
        watched = self._watched[table, number]
        return max(0, self._now_us() - max(watched.last_hit_us.value, watched.inserted_us)) * 1000

    def wait_s(self) -> float | None:
        """How long nothing can become due; None: as long as no entry is inserted."""
        return max(0, self._queue[0][0] - self._now_us()) / 1e6 if self._queue else None

    def take(self) -> list[Entry]:
        """The entries that have become idle; their time starts anew."""
        now, idle = self._now_us(), []
        while self._queue and self._queue[0][0] <= now:
            _, turn, which = heappop(self._queue)
            watched = self._watched.get(which)
            if watched is None or watched.turn != turn:
                continue
            since = max(watched.last_hit_us.value, watched.since_us)
            if now - since >= watched.timeout_us:
                idle.append(watched.entry)
                watched.since_us = since = now
            self._schedule(which, since)
        return idle

    def _schedule(self, which: tuple[str, int], since_us: int) -> None:
        if len(self._queue) > 2 * len(self._watched) + QUEUE_MIN:
            self._drop_outdated()
        self._turns += 1
        watched = self._watched[which]
        watched.turn = self._turns
        heappush(self._queue, (since_us + watched.timeout_us, self._turns, which))

    def _drop_outdated(self) -> None:
        """Entries that are changed often leave a place in the queue behind each time."""
        turns = {watched.turn for watched in self._watched.values()}
        self._queue = [place for place in self._queue if place[1] in turns]
        heapify(self._queue)
