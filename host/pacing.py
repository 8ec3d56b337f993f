"""A token bucket: packets leave this host at a given rate, in order, with bursts of a few packets.

Without it a whole window goes at once into the link's queue, where it delays and drops others' packets.  The bucket is
pure logic: times are passed in.  The pacer needs an event loop, or virtual time.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from host.alarm import Clock, Timer
from host.wire import HEADER_BYTES, WORD_BYTES

T = TypeVar("T")

FRAME_BYTES = 42
"""Ethernet, IPv4 and UDP headers: links count them."""

BURST_PACKETS = 4
BURST_S = 2e-3
"""Timers ring up to a millisecond late: a bucket that is smaller than what leaves in that time would lose rate."""


class TokenBucket:
    """In any time t no more than `burst_bytes` + t * `mbps` leaves; packets are no larger than `burst_bytes`."""

    def __init__(self, *, mbps: float, burst_bytes: int) -> None:
        """It is full."""
        self._byte_s = 8e-6 / mbps
        self._burst_s = burst_bytes * self._byte_s
        self._full_s = 0.0  # when it is full again

    def due_s(self, size: int, now: float) -> float:
        """When so many bytes may have left, from `now` on; later than that if more is taken before."""
        return max(now, self._full_s - self._burst_s + size * self._byte_s)

    def take(self, size: int, now: float) -> None:
        """So many bytes leave."""
        self._full_s = max(self._full_s, now) + size * self._byte_s


def bucket_for(mbps: float, words: int) -> TokenBucket | None:
    """For packets of `words` words at this rate, which counts their frames; None at 0: not paced."""
    if not mbps:
        return None
    packet_bytes = FRAME_BYTES + HEADER_BYTES + words * WORD_BYTES
    burst_bytes = max(BURST_PACKETS * packet_bytes, int(mbps * 1e6 / 8 * BURST_S))
    return TokenBucket(mbps=mbps, burst_bytes=burst_bytes)


class Pacer(Generic[T]):
    """Gives packets to `take` when the bucket lets them go, in the order in which they came.

    >>> pacer = Pacer(bucket_for(10.0, words=4), loop, transmit)
    >>> pacer.send(datagram, len(datagram))
    """

    def __init__(self, bucket: TokenBucket, clock: Clock, take: Callable[[T], object]) -> None:
        self._bucket, self._clock, self._take = bucket, clock, take
        self._queue: deque[tuple[T, int]] = deque()
        self._queued_bytes = 0
        self._timer: Timer | None = None

    def send(self, packet: T, payload_bytes: int) -> float | None:
        """Let a packet with so much UDP payload go, now or in its turn: None, or when it is expected to leave."""
        size, now = payload_bytes + FRAME_BYTES, self._clock.time()
        due_s = self._bucket.due_s(self._queued_bytes + size, now)
        if not self._queue and due_s <= now:
            self._go(packet, size, now)
            return None
        self._queue.append((packet, size))
        self._queued_bytes += size
        if self._timer is None:
            self._timer = self._clock.call_at(due_s, self._release)
        return due_s

    def close(self) -> None:
        """What waits is thrown away, and nothing is due any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._queued_bytes = 0

    def _release(self) -> None:
        """Everything that may go by now."""
        self._timer = None
        now = self._clock.time()
        while self._queue:
            packet, size = self._queue[0]
            due_s = self._bucket.due_s(size, now)
            if due_s > now:
                self._timer = self._clock.call_at(due_s, self._release)
                return
            self._queue.popleft()
            self._queued_bytes -= size
            self._go(packet, size, now)

    def _go(self, packet: T, size: int, now: float) -> None:
        self._bucket.take(size, now)
        self._take(packet)
