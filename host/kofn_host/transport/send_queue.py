"""One direction of a worker's network with injected faults, on any clock."""

from collections.abc import Callable
from typing import NamedTuple

from kofn_host.transport.fault_injection import Copy, Faults
from kofn_host.transport.timers import Clock, Timer

HELD_S = 0.02
"""The longest time that a datagram is held back for reordering."""

_BEHIND_S = 1e-6  # simultaneous timers may run in any order

Carry = Callable[[list[bytes]], None]
"""Takes arrived datagrams."""


class _Held(NamedTuple):
    """A datagram that is held back until another datagram passes it."""

    due_s: float  # its arrival time without reordering
    datagram: bytes
    timer: Timer


class SendQueue:
    """One direction of a worker's network with injected faults: calls `take` with each datagram when it arrives.

    Only one datagram is held back at a time; the next datagram passes it.
    """

    def __init__(self, faults: Faults, clock: Clock, take: Carry) -> None:
        """Start the faults' time."""
        self._faults, self._clock, self._take = faults, clock, take
        self._started_s = clock.time()
        self._held: _Held | None = None

    def carry(self, datagrams: list[bytes]) -> None:
        """Decide the datagrams' fates; `take` gets the datagrams that arrive at once in one call."""
        arrived: list[bytes] = []
        for datagram in datagrams:
            now = self._clock.time()
            for copy in self._faults.fate(datagram, now - self._started_s):
                self._place(copy, now, arrived)
        if arrived:
            self._take(arrived)

    def _place(self, copy: Copy, now: float, arrived: list[bytes]) -> None:
        """Hold a copy back, or let it arrive; then the held datagram arrives behind it."""
        due_s = now + copy.delay_s
        if copy.held and self._held is None:
            timer = self._clock.call_at(due_s + HELD_S, self._wait_is_over)
            self._held = _Held(due_s, copy.datagram, timer)
            return
        self._arrive_at(due_s, now, copy.datagram, arrived)
        if self._held is not None:
            held, self._held = self._held, None
            held.timer.cancel()
            after_s = now if max(held.due_s, due_s) <= now else max(held.due_s, due_s + _BEHIND_S)
            self._arrive_at(after_s, now, held.datagram, arrived)

    def _arrive_at(self, due_s: float, now: float, datagram: bytes, arrived: list[bytes]) -> None:
        if due_s <= now:
            arrived.append(datagram)
        else:
            self._clock.call_at(due_s, self._take, [datagram])

    def _wait_is_over(self) -> None:
        """Let the held datagram arrive: no other datagram has passed it in time."""
        if self._held is not None:
            held, self._held = self._held, None
            self._take([held.datagram])
