"""The TOML file's [job]: workers, packets and slots."""

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import COLLECTIVES
from kofn_common.config.scale import SCALE_WORKERS_MAX
from kofn_common.config.section import Positive, PositiveInt, Section
from kofn_common.wire.sizes import JOB_MAX, SLOTS, WORDS_MAX

SWITCH = "switch"
"""The job.collective for which a controller chooses k."""


class JobSection(Section, frozen=True):
    """The aggregation: workers, packets and slots."""

    id: Annotated[int, Meta(ge=1, le=JOB_MAX)] = 1  # the number of the job, and of its multicast group
    collective: str = (
        SWITCH  # how gradients are summed: switch, server, ring, gloo, mpi, or module:Name for a custom one
    )
    workers: Annotated[int, Meta(ge=1, le=SCALE_WORKERS_MAX)] = 4  # at most 64 for each rack, unless --scale simulates
    racks: Annotated[int, Meta(ge=1, le=SCALE_WORKERS_MAX)] = (
        1  # 1: one switch; more: a leaf switch for each rack below a root switch; at most 16, unless --scale simulates
    )
    words: Annotated[int, Meta(ge=1, le=WORDS_MAX)] = 4  # 256-byte words in a packet
    start_workers: PositiveInt | None = None  # number of attached workers at which the job starts; None: all
    slots: Annotated[int, Meta(ge=2, le=SLOTS)] = 1024  # number of the switch's slots that the job uses; a power of two
    window: PositiveInt = 64  # blocks in flight; a power of two, at most slots / 2
    exact_slots: Annotated[int, Meta(ge=0, le=SLOTS // 2)] = (
        0  # number of further slots, for exact sums (kofn.Communicator); a power of two; 0: no exact sums
    )
    rto_ms: Positive = 50.0  # first retransmission timeout
    packets: Literal["fast", "scapy"] = "fast"  # the packet codec
    modules: str | None = None  # folder of module:Name, searched after the working folder; None: the TOML file's folder
    gradient_range: Annotated[float, Meta(ge=2**-20, le=2**20)] = (
        64.0  # largest magnitude of a worker's value until the first sum; the rest goes into the residual
    )

    @property
    def exact_id(self) -> int:
        """The job id under which the switch keeps its exact sums."""
        return JOB_MAX + 1 + self.id

    def check(self) -> None:
        """Check that the collective exists, and that slots and window are powers of two."""
        COLLECTIVES.check(self.collective, "job.collective")
        if self.slots & (self.slots - 1):
            raise ConfigError(f"job.slots must be a power of two from 2 to {SLOTS}, got {self.slots}")
        if self.slots % (2 * self.window):
            most = self.slots // 2
            raise ConfigError(f"job.window must be a power of two from 1 to {most} (job.slots / 2), got {self.window}")
        if self.exact_slots & (self.exact_slots - 1) or self.exact_slots == 1:
            raise ConfigError(
                f"job.exact_slots must be 0, or a power of two from 2 to {SLOTS // 2}, got {self.exact_slots}"
            )

    def check_start(self) -> None:
        """Check that the job has the workers with which it starts."""
        if (self.start_workers or 1) > self.workers:
            raise ConfigError(f"job.start_workers must be 1 to {self.workers} (job.workers), got {self.start_workers}")

    def check_ranks(self, ranks: Iterable[int], field: str) -> None:
        """Check that every rank is a worker's."""
        for rank in ranks:
            if rank >= self.workers:
                raise ConfigError(f"{field} must be 0 to {self.workers - 1} (job.workers - 1), got {rank}")
