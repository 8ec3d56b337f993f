"""A token bucket: packets leave this host at a given rate, in order, with bursts of a few packets.

Without it a whole window goes at once into the link's queue, where it delays and drops others' packets.  The bucket is
pure logic: times are passed in.  The pacer needs an event loop, or virtual time.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kofn.host.protocol.deadline_timer import Clock, Timer
from kofn.host.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES

T = TypeVar("T")

BURST_PACKETS = 4
BURST_S = 8e-3
PAUSE_S = 4e-3
"""What waits leaves together, as much as is due after such a pause: a wake-up costs a worker as much as some packets.
A bucket that is smaller than what leaves in the pause would lose rate."""

LATE_S = 16e-3
"""Timers ring up to a millisecond late, and later where workers share cores: what is due leaves then,
after so long a delay at most."""


class TokenBucket:
    """In any time t no more than `burst_bytes` + t * `mbps` leaves; packets are no larger than `burst_bytes`.

    What waits while the bucket is full, because nobody looks, leaves later in addition: as much as would have left in
    the `late_s` before.
    """

    def __init__(self, *, mbps: float, burst_bytes: int, late_s: float = 0.0) -> None:
        self._byte_s, self._late_s = 8e-6 / mbps, late_s
        self._burst_s = burst_bytes * self._byte_s
        self.full_s = 0.0
        """When it is full again: whoever has nothing that waits then loses rate."""

    def due_s(self, size: int, now: float) -> float:
        """When so many bytes may have left, from `now` on; later than that if more is taken before."""
        return max(now, self.full_s - self._burst_s + size * self._byte_s)

    def take(self, size: int, now: float, *, waited: bool = False) -> None:
        """So many bytes leave, which may have waited for it."""
        self.full_s = max(self.full_s, now - self._late_s * waited) + size * self._byte_s


def bucket_for(mbps: float, words: int) -> TokenBucket | None:
    """For packets of `words` words at this rate, which counts their frames; None at 0: not paced."""
    if not mbps:
        return None
    packet_bytes = FRAME_BYTES + HEADER_BYTES + words * WORD_BYTES
    burst_bytes = max(BURST_PACKETS * packet_bytes, int(mbps * 1e6 / 8 * BURST_S))
    return TokenBucket(mbps=mbps, burst_bytes=burst_bytes, late_s=LATE_S)


class Pacer(Generic[T]):
    """Gives packets to `take` when the bucket lets them go, in the order in which they came.

    pacer = Pacer(bucket_for(10.0, words=4), loop, transmit)
    pacer.send([(datagram, len(datagram))])
    """

    def __init__(
        self,
        bucket: TokenBucket,
        clock: Clock,
        take: Callable[[list[T]], object],
        rings: Callable[[], object] = lambda: None,
    ) -> None:
        """`rings` is called before something that has waited leaves, and may have more of it."""
        self._bucket, self._clock, self._take, self._rings = bucket, clock, take, rings
        self.rings_s: float | None = None
        """When something that waits leaves; None: nothing does."""
        self._queue: deque[tuple[T, int]] = deque()
        self._queued_bytes = 0
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def send(self, packets: Sequence[tuple[T, int]]) -> list[float | None]:
        """Let packets with so much UDP payload each go, now or in their turn.

        Of each None, or when it is expected to leave: up to PAUSE_S before it does.
        """
        now, going, leaves = self._clock.time(), list[T](), list[float | None]()
        for packet, payload_bytes in packets:
            size = payload_bytes + FRAME_BYTES
            due_s = self._bucket.due_s(self._queued_bytes + size, now)
            if not self._queue and due_s <= now:
                self._bucket.take(size, now)
                going.append(packet)
                leaves.append(None)
            else:
                self._queue.append((packet, size))
                self._queued_bytes += size
                leaves.append(due_s)
        self._go(going, now)
        return leaves

    def close(self) -> None:
        """What waits is thrown away, and nothing is due any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self.rings_s = None
        self._queue.clear()
        self._queued_bytes = 0

    def _release(self) -> None:
        """Everything that may go by now."""
        self._rings()
        self._timer = self.rings_s = None
        now, going = self._clock.time(), list[T]()
        while self._queue and self._bucket.due_s(self._queue[0][1], now) <= now:
            packet, size = self._queue.popleft()
            self._queued_bytes -= size
            self._bucket.take(size, now, waited=True)
            going.append(packet)
        self._go(going, now)

    def _go(self, going: list[T], now: float) -> None:
        """These leave; if others wait, see to it that some of them do after a pause, or all as soon as they may."""
        if self._queue and self._timer is None:
            first_s = self._bucket.due_s(self._queue[0][1], now)
            all_s = self._bucket.due_s(self._queued_bytes, now)
            self.rings_s = min(first_s + PAUSE_S, all_s, max(first_s, self._bucket.full_s))
            self._timer = self._clock.call_at(self.rings_s, self._release)
        if going:
            self._take(going)
