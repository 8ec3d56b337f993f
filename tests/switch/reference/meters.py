"""Meters of two rates and three colours (RFC 2698, colour-blind)."""

from dataclasses import dataclass, field

from kofn_switch.state.entries import MeterConfig

GREEN, YELLOW, RED = 0, 1, 2


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Tokens of one rate; `rate` is tokens a microsecond."""

    rate: float
    burst: int
    color: int
    tokens: int = 0
    given: int = 0  # tokens since the meter's start, including spent and overflowed ones


@dataclass(slots=True, kw_only=True)
class MeterCell:
    """One meter; without rates all packets are green.  `unit` is packets or bytes."""

    unit: str
    since_us: int
    config: MeterConfig | None = None
    buckets: list[Bucket] = field(default_factory=list)

    def configure(self, config: MeterConfig | None) -> None:
        """Configure the rates, with full buckets; None: no rates."""
        self.config = config
        rates = (
            ()
            if config is None
            else (
                (config.peak_rate, config.peak_burst, RED),
                (config.committed_rate, config.committed_burst, YELLOW),
            )
        )
        self.buckets = [Bucket(rate=rate / 1e6, burst=burst, color=color, tokens=burst) for rate, burst, color in rates]

    def run(self, size: int, now_us: int) -> int:
        """Return the colour of a packet of `size` bytes: that of the first bucket that lacks tokens."""
        need = 1 if self.unit == "packets" else size
        for bucket in self.buckets:
            given = int((now_us - self.since_us) * bucket.rate)
            bucket.tokens = min(bucket.tokens + given - bucket.given, bucket.burst)
            bucket.given = given
            if bucket.tokens < need:
                return bucket.color
            bucket.tokens -= need
        return GREEN
