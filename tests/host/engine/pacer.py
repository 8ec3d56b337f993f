"""The pacer of pacer.c over packets of any kind, with timers of a clock: for virtual time.

The engine has its own.
"""

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kofn.host.engine.pacing_rate import PacingRate
from kofn.host.native import library
from kofn.host.transport.timers import Clock, Timer
from kofn.host.wire.packet import FRAME_BYTES

T = TypeVar("T")


class _Pacer(ctypes.Structure):
    """struct pacer."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("byte_s", "burst_s", "late_s", "full_s", "rings_s")),
        ("queue", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("first", "count", "capacity", "queued_bytes")),
    )


class Pacer(Generic[T]):
    """Gives packets to `take` when the pace lets them go, in the order in which they came.

    pacer = Pacer(pacing_rate(10.0, words=4), clock, transmit)
    pacer.send([(datagram, len(datagram))])
    """

    def __init__(self, pace: PacingRate, clock: Clock, take: Callable[[list[T]], object]) -> None:
        self._library, self._clock, self._take = library(), clock, take
        self._pacer = _Pacer()
        self._library.pacer_open(ctypes.byref(self._pacer), pace.mbps, pace.burst_bytes, pace.late_s)
        weakref.finalize(self, self._library.pacer_close, ctypes.byref(self._pacer))
        self._waiting: dict[int, T] = {}
        self._number = 0
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rings_s(self) -> float | None:
        """When something that waits leaves; None: nothing does."""
        return self._pacer.rings_s if self._waiting else None

    def send(self, packets: Sequence[tuple[T, int]]) -> list[float | None]:
        """Let packets with so much UDP payload each go, now or in their turn.

        Of each None, or when it is expected to leave: up to PAUSE_S before it does.
        """
        now, going, leaves = self._clock.time(), list[T](), list[float | None]()
        for packet, payload_bytes in packets:
            self._number += 1
            due_s = self._library.pacer_send(ctypes.byref(self._pacer), self._number, payload_bytes + FRAME_BYTES, now)
            if due_s:
                self._waiting[self._number] = packet
            else:
                going.append(packet)
            leaves.append(due_s or None)
        self._go(going, now)
        return leaves

    def close(self) -> None:
        """What waits is thrown away, and nothing is due any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._library.pacer_close(ctypes.byref(self._pacer))

    def _release(self) -> None:
        """Everything that may go by now."""
        self._timer = None
        self._pacer.rings_s = float("inf")
        now, going = self._clock.time(), list[T]()
        while (number := self._library.pacer_release(ctypes.byref(self._pacer), now)) >= 0:
            going.append(self._waiting.pop(number))
        self._go(going, now)

    def _go(self, going: list[T], now: float) -> None:
        """These leave; if others wait, see to it that some of them do after a pause, or all as soon as they may."""
        self._library.pacer_set(ctypes.byref(self._pacer), now)
        if self._waiting and self._timer is None:
            self._timer = self._clock.call_at(self._pacer.rings_s, self._release)
        if going:
            self._take(going)
