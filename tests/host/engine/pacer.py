"""The pacer of pacer.c for packets of any kind, on a clock's timers, also in virtual time.

The engine has its own.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kofn_common.wire.packet import FRAME_BYTES
from kofn_host import structs
from kofn_host.engine.pacing_rate import PacingRate
from kofn_host.native import library
from kofn_host.transport.timers import Clock, Timer

T = TypeVar("T")


class Pacer(Generic[T]):
    """Gives packets to `take` when the pace lets them go, the heaviest first, else in the order in which they came.

    pacer = Pacer(pacing_rate(10.0, words=4), clock, transmit)
    pacer.send([(datagram, len(datagram))])
    """

    def __init__(self, pace: PacingRate, clock: Clock, take: Callable[[list[T]], object]) -> None:
        self._library, self._clock, self._take = library(), clock, take
        self._pacer = structs.Pacer()
        self._library.pacer_open(ctypes.byref(self._pacer), pace.mbps, pace.burst_bytes, pace.late_s)
        weakref.finalize(self, self._library.pacer_close, ctypes.byref(self._pacer))
        self._waiting: dict[int, T] = {}
        self._number = 0
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rings_s(self) -> float | None:
        """Return when the next waiting packet leaves; None: no packet waits."""
        return self._pacer.rings_s if self._waiting else None

    def send(self, packets: Sequence[tuple[T, int]], weight: int = 0) -> list[float | None]:
        """Let packets with these UDP payload sizes leave, now or in their turn.

        Returns for each None, or when it is expected to leave: up to PAUSE_S before it does.
        """
        now, going, leaves = self._clock.time(), list[T](), list[float | None]()
        for packet, payload_bytes in packets:
            self._number += 1
            frame_bytes = payload_bytes + FRAME_BYTES
            due_s = self._library.pacer_send(ctypes.byref(self._pacer), self._number, frame_bytes, weight, now)
            if due_s:
                self._waiting[self._number] = packet
            else:
                going.append(packet)
            leaves.append(due_s or None)
        self._go(going, now)
        return leaves

    def close(self) -> None:
        """Discard all waiting packets and cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._library.pacer_close(ctypes.byref(self._pacer))

    def _release(self) -> None:
        """Let all packets leave that may leave by now."""
        self._timer = None
        self._pacer.rings_s = float("inf")
        now, going = self._clock.time(), list[T]()
        while (number := self._library.pacer_release(ctypes.byref(self._pacer), now)) >= 0:
            going.append(self._waiting.pop(number))
        self._go(going, now)

    def _go(self, going: list[T], now: float) -> None:
        """Let these packets leave. If others wait, set the timer: some leave after a pause, or all
        as soon as they may.
        """
        self._library.pacer_set(ctypes.byref(self._pacer), now)
        if self._waiting and self._timer is None:
            self._timer = self._clock.call_at(self._pacer.rings_s, self._release)
        if going:
            self._take(going)
