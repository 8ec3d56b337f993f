"""Gives each job its hosts of the topology, and its slots of every switch."""

from collections.abc import Sequence
from dataclasses import dataclass

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import places_of
from kofn_common.wire.sizes import JOB_MAX, SLOTS
from kofn_controller.errors import LayoutError
from kofn_controller.p4runtime.topology import TopologyHost

LEAF_BUFFERS = 2
"""Number of sums that a leaf keeps for each slot. A tree has fewer slots by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """A job's part of the topology and of the switches. The job has the slots from `base` on. Each rack of `hosts` has
    the same number of the job's workers: they run on the rack's hosts from number `first` on."""

    job: JobSection
    hosts: tuple[TopologyHost, ...]
    server: TopologyHost | None = None
    """The host of the job's server, if it has one."""
    first: int = 0
    base: int = 0

    def __post_init__(self) -> None:
        """Check the layout; LayoutError if the job does not fit the topology or the switch."""
        if not 1 <= self.job.id <= JOB_MAX:
            raise LayoutError(f"job.id must be 1 to {JOB_MAX} (higher ids are those of exact sums), got {self.job.id}")
        if self.job.workers % self.racks:
            raise LayoutError(f"job.workers must be a multiple of the racks ({self.racks}), got {self.job.workers}")
        free = len(self.hosts) - self.first * self.racks
        if self.job.workers > free:
            earlier = f", {self.first * self.racks} of them are earlier jobs'" if self.first else ""
            raise LayoutError(
                f"job.workers must be at most {free}, got {self.job.workers}: the topology has {len(self.hosts)}"
                f" hosts{earlier}"
            )
        slots = SLOTS if self.racks == 1 else SLOTS // LEAF_BUFFERS
        if self.end > slots:
            exact = " and job.exact_slots together" if self.job.exact_slots else ""
            raise LayoutError(
                f"job.slots{exact} must be at most {slots - self.base}, got {self.end - self.base}: the switch has"
                f" {slots}, {self.base} of them are earlier jobs'"
            )

    @property
    def end(self) -> int:
        """The first slot after the job's, including its slots for exact sums."""
        return self.base + self.job.slots + self.job.exact_slots

    @property
    def racks(self) -> int:
        return 1 + max(host.rack for host in self.hosts)

    @property
    def rack_workers(self) -> int:
        """The number of workers in each rack."""
        return self.job.workers // self.racks

    @property
    def places(self) -> list[int]:
        """Each worker's place, by rank."""
        return places_of(self.job.workers, self.racks)

    @property
    def members(self) -> tuple[TopologyHost, ...]:
        """The hosts of the job's workers, by rank."""
        return tuple(host for rack in range(self.racks) for host in self.rack(rack))

    def rack(self, number: int) -> tuple[TopologyHost, ...]:
        """Return the hosts of the job's workers in one rack, by rank."""
        hosts = [host for host in self.hosts if host.rack == number]
        return tuple(hosts[self.first : self.first + self.rack_workers])


def lay_out(jobs: Sequence[JobSection], hosts: tuple[TopologyHost, ...]) -> tuple[SlotLayout, ...]:
    """Give each job the next hosts of each rack, and the next slots, which begin at a multiple of the job's number of
    slots. LayoutError if the jobs do not fit. The hosts after all workers' hosts run the jobs' servers, in the order of
    the jobs."""
    layouts: list[SlotLayout] = []
    first = end = 0
    servers = iter(hosts[sum(job.workers for job in jobs) :])
    for job in jobs:
        if job.id in (layout.job.id for layout in layouts):
            raise LayoutError(f"each job must have its own job.id, got {job.id} in two configurations")
        base = -(-end // job.slots) * job.slots
        server = next(servers, None) if load_collective(job.collective).server else None
        layouts.append(SlotLayout(job=job, hosts=hosts, server=server, first=first, base=base))
        first, end = first + layouts[-1].rack_workers, layouts[-1].end
    return tuple(layouts)
