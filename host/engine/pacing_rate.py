"""The rate at which a worker's packets leave, and how large a burst may be (pacer.h)."""

from dataclasses import dataclass

from kofn.host.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES

BURST_PACKETS = 4
BURST_S = 8e-3

CREDIT_S = 2e-3
"""Of packets that wait to leave, and that nothing overtakes: fewer would wake up the engine for less."""

LATE_S = 16e-3
"""Timers ring up to a millisecond late, and later where workers share cores: what is due leaves then,
after so long a delay at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingRate:
    """In any time t no more than `burst_bytes` + t * `mbps` leaves; packets are no larger than `burst_bytes`.

    What waits while the bucket is full, because nobody looks, leaves later in addition: as much as would have left in
    the `late_s` before.
    """

    mbps: float
    burst_bytes: int
    late_s: float = LATE_S

    def credit_packets(self, words: int) -> int:
        """Packets of so many words that wait to leave where others may overtake them, 1 or more."""
        return max(1, int(self.mbps * 1e6 / 8 * CREDIT_S / packet_bytes(words)))


def pacing_rate(mbps: float, words: int) -> PacingRate | None:
    """For packets of `words` words at this rate, which counts their frames; None at 0: not paced."""
    if not mbps:
        return None
    return PacingRate(mbps=mbps, burst_bytes=max(BURST_PACKETS * packet_bytes(words), int(mbps * 1e6 / 8 * BURST_S)))


def packet_bytes(words: int) -> int:
    """Of a packet of so many words, with its frame."""
    return FRAME_BYTES + HEADER_BYTES + words * WORD_BYTES
