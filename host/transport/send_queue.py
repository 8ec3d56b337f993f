"""One direction of a worker's network with its faults, on any clock."""

from collections.abc import Callable
from typing import NamedTuple

from kofn.host.transport.fault_injection import Copy, Faults
from kofn.host.transport.timers import Clock, Timer

HELD_S = 0.02
"""How long a datagram that is to be reordered waits for one that passes it."""

_BEHIND_S = 1e-6  # timers of one moment may run in any order

Carry = Callable[[list[bytes]], None]
"""What is to be done with datagrams."""


class _Held(NamedTuple):
    """A datagram that waits for another to pass it."""

    due_s: float  # when it would have arrived
    datagram: bytes
    timer: Timer


class SendQueue:
    """One direction of a worker's network with its faults: gives each datagram to `take` when it arrives.

    One datagram is held back at a time; the one that comes after it is not, or neither would pass.
    """

    def __init__(self, faults: Faults, clock: Clock, take: Carry) -> None:
        """The faults' time begins now."""
        self._faults, self._clock, self._take = faults, clock, take
        self._started_s = clock.time()
        self._held: _Held | None = None

    def carry(self, datagrams: list[bytes]) -> None:
        """What arrives at once is given at once, and together."""
        arrived: list[bytes] = []
        for datagram in datagrams:
            now = self._clock.time()
            for copy in self._faults.fate(datagram, now - self._started_s):
                self._place(copy, now, arrived)
        if arrived:
            self._take(arrived)

    def _place(self, copy: Copy, now: float, arrived: list[bytes]) -> None:
        """One copy: held back, or on its way with the held one behind it."""
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
        """Nothing passed the held datagram."""
        if self._held is not None:
            held, self._held = self._held, None
            self._take([held.datagram])
