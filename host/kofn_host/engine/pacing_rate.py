"""The rate and the largest burst of a worker's packets (pacer.h)."""

from dataclasses import dataclass

from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES

BURST_PACKETS = 4
BURST_S = 8e-3

CREDIT_S = 2e-3
"""Seconds of queued packets that cannot be overtaken; with fewer seconds the engine would wake up more often."""

LATE_S = 16e-3
"""The most delay of a timer that is made up for.  Timers fire up to a millisecond late, later if cores are shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingRate:
    """A limit of sending: in any time t at most `burst_bytes` + t * `mbps` leaves. Packets are at most `burst_bytes`.

    After a late wake-up additional queued packets leave: as many as would have left in the last `late_s`.
    """

    mbps: float
    burst_bytes: int
    late_s: float = LATE_S

    @property
    def burst_s(self) -> float:
        """The time that a link of this rate takes for the largest burst: a full one, after a late wake-up."""
        return self.burst_bytes * 8e-6 / self.mbps + self.late_s

    def credit_packets(self, words: int) -> int:
        """Return the most packets of `words` words to queue, 1 or more, if later packets must be able to overtake."""
        return max(1, int(self.mbps * 1e6 / 8 * CREDIT_S / packet_bytes(words)))


def pacing_rate(mbps: float, words: int) -> PacingRate | None:
    """Return the pacing of packets of `words` words at `mbps`, frames included; None (unpaced) if `mbps` is 0."""
    if not mbps:
        return None
    return PacingRate(mbps=mbps, burst_bytes=max(BURST_PACKETS * packet_bytes(words), int(mbps * 1e6 / 8 * BURST_S)))


def pacer_fields(pace: PacingRate | None) -> tuple[float, int, float]:
    """Return rate, burst and delay for native code (pacer.h); None: unpaced."""
    return (pace.mbps, pace.burst_bytes, pace.late_s) if pace else (0.0, 0, 0.0)


def packet_bytes(words: int) -> int:
    """Return the bytes of a packet of `words` words, with its frame."""
    return FRAME_BYTES + HEADER_BYTES + words * WORD_BYTES
