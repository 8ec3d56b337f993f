"""Finds entries that no packet hit for their idle timeout.

The native part notes each entry's last hit. This module keeps a queue of the times at which to check. Times are those
of the switch's clock, in microseconds.
"""

from collections.abc import Callable
from ctypes import c_uint64
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kofn_switch.state.entries import Entry

QUEUE_MIN = 64


@dataclass(slots=True)
class _Watched:
    """An entry, the time of its last hit, and the start of its idle time if it has had no hit since then."""

    entry: Entry
    last_hit_us: c_uint64  # in the native table
    inserted_us: int
    since_us: int
    turn: int  # the turn of the entry's item in the queue; items with another turn are outdated

    @property
    def timeout_us(self) -> int:
        return max(1, self.entry.idle_timeout_ns // 1000)


class IdleTimeouts:
    """The entries of tables that have idle timeouts, by table and place."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._watched: dict[tuple[str, int], _Watched] = {}
        self._queue: list[tuple[int, int, tuple[str, int]]] = []  # (time of the check, turn, entry)
        self._turns = 0

    def watch(self, entry: Entry, number: int, last_hit_us: c_uint64) -> None:
        """Watch an entry, or restart its idle time with another timeout."""
        now, which = self._now_us(), (entry.table, number)
        before = self._watched.get(which)
        inserted = now if before is None else before.inserted_us
        self._watched[which] = _Watched(entry, last_hit_us, inserted, now, 0)
        if entry.idle_timeout_ns:
            self._schedule(which, now)

    def forget(self, table: str, number: int) -> None:
        self._watched.pop((table, number), None)

    def elapsed_ns(self, table: str, number: int) -> int:
        """Return nanoseconds since a packet hit the entry, or since it was inserted."""
        watched = self._watched[table, number]
        return max(0, self._now_us() - max(watched.last_hit_us.value, watched.inserted_us)) * 1000

    def wait_s(self) -> float | None:
        """Return seconds until an entry can become due; None while no entry has a timeout."""
        return max(0, self._queue[0][0] - self._now_us()) / 1e6 if self._queue else None

    def take(self) -> list[Entry]:
        """Return the entries that have become idle, and restart their time."""
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
        """Remove outdated items, because each change of an entry leaves an outdated item in the queue."""
        turns = {watched.turn for watched in self._watched.values()}
        self._queue = [place for place in self._queue if place[1] in turns]
        heapify(self._queue)
