"""The TOML file's [[fault]]: packets that the network loses, damages or delays."""

import math
from typing import Annotated, Literal

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.section import NotNegative, PositiveInt, Probability, Section, WholeNumber


class FaultSection(Section, frozen=True):
    """Faults of some workers' packets in the network, while the entry is in force; several entries add up."""

    where: Literal["host", "switch", "uplink"] = (
        "host"  # a worker's transport, the switch's port to a worker, a leaf's uplink
    )
    workers: tuple[WholeNumber, ...] | None = None  # None: all; not with where = "uplink"
    racks: tuple[WholeNumber, ...] | None = None  # racks of the uplinks; None: all
    direction: Literal["send", "receive", "both"] = "both"  # seen from the worker; at an uplink, from the rack
    packets: tuple[PositiveInt, ...] | None = None  # only these packets, counted from 1 for each worker and direction
    blocks: tuple[WholeNumber, ...] | None = None  # only packets of these blocks; needs where = "host"
    drop: Probability = 0.0  # a packet is lost
    duplicate: Probability = 0.0  # a packet arrives twice
    corrupt: Probability = 0.0  # one bit of a packet flips, anywhere
    exchange: Probability = 0.0  # the two words of a packet's iteration are exchanged, which no checksum shows
    reorder: Probability = 0.0  # a packet is held back until the next packet has passed, 20 ms at most
    delay_ms: NotNegative = 0.0  # added to every packet
    jitter_ms: NotNegative = 0.0  # largest additional random delay, uniform from 0; may reorder packets
    from_s: NotNegative = 0.0  # begin, since the worker started; at the switch: since the port's first packet
    until_s: Annotated[float, Meta(ge=0)] = math.inf  # end, counted as from_s

    def check(self, job: JobSection, target: str) -> None:
        """Check that the fault has an effect, and a place in the job's network that can cause it."""
        job.check_ranks(self.workers or (), "fault.workers")
        if self.where == "uplink" and job.racks == 1:
            raise ConfigError(
                "fault.where must be 'host' or 'switch' with job.racks = 1, got 'uplink': one switch has none"
            )
        if any(rack >= job.racks for rack in self.racks or ()):
            raise ConfigError(f"fault.racks must be 0 to {job.racks - 1} (job.racks - 1), got {list(self.racks or ())}")
        if self.until_s <= self.from_s:
            raise ConfigError(f"fault.until_s must be more than fault.from_s = {self.from_s}, got {self.until_s}")
        effects = ("drop", "duplicate", "corrupt", "exchange", "reorder", "delay_ms", "jitter_ms")
        if not any(getattr(self, effect) for effect in effects):
            raise ConfigError(f"fault must have one or more of {', '.join(effects)} above 0, got none")
        for field in ("blocks", "exchange"):
            if getattr(self, field) and self.where != "host":
                raise ConfigError(f"fault.where must be 'host' with fault.{field}, got {self.where!r}")
        other = self.workers if self.where == "uplink" else self.racks
        if other is not None:
            named = "workers" if self.where == "uplink" else "racks"
            raise ConfigError(f"fault.{named} must not be given with fault.where = {self.where!r}, got {list(other)}")
        for field in ("workers", "racks", "packets", "blocks"):
            if getattr(self, field) == ():
                raise ConfigError(f"fault.{field} must have one or more numbers, got none: leave it out for all")
        if self.where != "host" and target == "bmv2":
            raise ConfigError(
                f"fault.where must be 'host' with network.target = 'bmv2', got {self.where!r}: BMv2's ports have no"
                " fault layer"
            )
