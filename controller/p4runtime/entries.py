"""Builds the table entries, multicast groups and digest setting of all jobs, from their configurations and the
topology.

Tables, actions and fields have p4info's names. The module knows nothing of connections.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import finsy as fy

from kofn.config.schema import JOB_MOST, SLOTS, JobSection
from kofn.controller.errors import LayoutError
from kofn.controller.p4runtime.topology import TopologyHost
from kofn.host.kernels.lanes import WIDTHS
from kofn.host.protocol.block_layout import WORD_BITS
from kofn.host.wire.packet import Lanes

FLOOD_GROUP = 0x100
"""The multicast group of all ports. A job's own group is its id, 1 to 127."""

BROADCAST_MAC = 0xFFFF_FFFF_FFFF

JOBS = "ingress.admission.jobs"
MEMBERS = "ingress.admission.members"
SET_JOB = "ingress.admission.set_job"
DIGEST = "arrival_t"
COUNTER = "ingress.verdicts"
VERDICT_TYPE = "verdict_t"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """A job's part of the topology and the switch: `job.workers` of the `hosts` from `first` on, slots from `base`
    on."""

    job: JobSection
    hosts: tuple[TopologyHost, ...]
    first: int = 0
    base: int = 0

    def __post_init__(self) -> None:
        """Check the layout; LayoutError if the job does not fit the topology or the switch."""
        if not 1 <= self.job.id <= JOB_MOST:
            raise LayoutError(
                f"job.id must be 1 to {JOB_MOST} (higher ones are those of exact sums), got {self.job.id}"
            )
        if self.job.workers > len(self.hosts) - self.first:
            earlier = f", {self.first} of them are earlier jobs'" if self.first else ""
            raise LayoutError(f"job.workers is {self.job.workers}: the topology has {len(self.hosts)} hosts{earlier}")
        if self.end > SLOTS:
            exact = f" and job.exact_slots {self.job.exact_slots}" if self.job.exact_slots else ""
            raise LayoutError(
                f"job.slots is {self.job.slots}{exact}: the switch has {SLOTS}, {self.base} of them are earlier jobs'"
            )

    @property
    def end(self) -> int:
        """The first slot after the job's, including its slots for exact sums."""
        return self.base + self.job.slots + self.job.exact_slots

    @property
    def members(self) -> tuple[TopologyHost, ...]:
        """The hosts of the job's workers, by rank."""
        return self.hosts[self.first : self.first + self.job.workers]


def lay_out(jobs: Sequence[JobSection], hosts: tuple[TopologyHost, ...]) -> tuple[SlotLayout, ...]:
    """Give each job the next hosts, and the next slots from a multiple of its number on; LayoutError if they do not
    fit."""
    layouts: list[SlotLayout] = []
    first = end = 0
    for job in jobs:
        if job.id in (layout.job.id for layout in layouts):
            raise LayoutError(f"job.id is {job.id} in two configurations: each job needs its own")
        base = -(-end // job.slots) * job.slots
        layouts.append(SlotLayout(job=job, hosts=hosts, first=first, base=base))
        first, end = first + job.workers, layouts[-1].end
    return tuple(layouts)


def high_bits(width: int) -> int:
    """Return a word with the top bit of every lane of `width` bits set."""
    lane = 1 << (width - 1)
    return sum(lane << shift for shift in range(0, WORD_BITS, width))


def job_entry(job: JobSection, k: int, generation: int, base: int = 0) -> fy.P4TableEntry:
    """Return the job's entry, which has k and the generation: one MODIFY of it changes k.

    The room is the number of workers, because workers scale their values so that one contribution of each fits a lane.
    """
    slots = {"base": base, "mask": job.slots - 1, "generation": generation}
    action = fy.P4TableAction(SET_JOB, k=k, group=job.id, room=job.workers, racks=0, **slots)
    return _entry(JOBS, {"hdr.kofn.job": job.id}, action)


def exact_entries(job: JobSection, generation: int, base: int = 0) -> list[fy.P4TableEntry]:
    """Return the entry of the job's exact sums, which need all workers and use the slots after its own; an empty list
    without such slots.
    """
    slots = {"base": base + job.slots, "mask": job.exact_slots - 1, "generation": generation}
    action = fy.P4TableAction(SET_JOB, k=job.workers, group=job.id, room=job.workers, racks=0, **slots)
    return [_entry(JOBS, {"hdr.kofn.job": job.exact_id}, action)] if job.exact_slots else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The content of a job's entry in the switch."""

    job: int
    k: int
    generation: int


def find_jobs(present: Iterable[Any], schema: fy.P4Schema) -> dict[int, Found]:
    """Return the jobs' entries among a switch's entities, by job."""
    return {found.job: found for entity in present if (found := _found(entity, schema)) is not None}


def _found(entity: Any, schema: fy.P4Schema) -> Found | None:
    """Decode a job's entry; None for all other entities."""
    if not isinstance(entity, fy.P4TableEntry) or schema.tables[entity.table_id].name != JOBS:
        return None
    match, action = entity.match, entity.action
    assert isinstance(match, fy.P4TableMatch) and isinstance(action, fy.P4TableAction)
    numbers = {name: int(value) for name, value in (match | action.args).items()}
    return Found(job=numbers["job"], k=numbers["k"], generation=numbers["generation"])


def fixed_entries(layouts: Sequence[SlotLayout]) -> list[fy.P4TableEntry | fy.P4MulticastGroupEntry]:
    """Return all entries and groups of the jobs, except the digest setting and the jobs' own entries."""
    hosts = layouts[0].hosts
    return [
        *(_group(layout.job.id, layout.members) for layout in layouts),
        _group(FLOOD_GROUP, hosts),
        *_l2(hosts),
        *_lanes(),
        *(entry for layout in layouts for entry in _workers(layout)),
    ]


def _group(number: int, hosts: tuple[TopologyHost, ...]) -> fy.P4MulticastGroupEntry:
    """Return the multicast group of these hosts."""
    return fy.P4MulticastGroupEntry(number, replicas=[host.port for host in hosts])


def digest_entry(layouts: Sequence[SlotLayout]) -> fy.P4DigestEntry:
    """Return the digest setting: the switch sends arrivals at once, or with many workers in short lists.

    A list is sent when it is full. There is no timeout, because with any BMv2 delays digests by 100 to 200 ms. There is
    no acknowledgement, because the sequence number makes each digest new. (BMv2 1.15.5 exits if a pipeline is pushed
    while it waits for one.)
    """
    size = max(1, min(layout.job.workers for layout in layouts) // 4)
    return fy.P4DigestEntry(DIGEST, max_list_size=size, max_timeout_ns=0, ack_timeout_ns=0)


def _l2(hosts: tuple[TopologyHost, ...]) -> Iterator[fy.P4TableEntry]:
    """Yield the entries that forward each host's MAC to its port, and broadcasts to all ports."""
    for host in hosts:
        action = fy.P4TableAction("ingress.forward.to_port", port=host.port)
        yield _entry("ingress.forward.l2", {"hdr.ethernet.dst_addr": host.mac}, action)
    flood = fy.P4TableAction("ingress.forward.flood", group=FLOOD_GROUP)
    yield _entry("ingress.forward.l2", {"hdr.ethernet.dst_addr": BROADCAST_MAC}, flood)


def _lanes() -> Iterator[fy.P4TableEntry]:
    """Yield an entry for each lane width, and one for votes, which have no lanes."""
    highs = {code: high_bits(width) for code, width in enumerate(WIDTHS)} | {Lanes.VOTES: 0}
    for code, high in highs.items():
        action = fy.P4TableAction("ingress.admission.set_lanes", high=high)
        yield _entry("ingress.admission.lanes", {"hdr.kofn.lanes": code}, action)


def _workers(layout: SlotLayout) -> Iterator[fy.P4TableEntry]:
    """Yield the entries of a job's workers: the port from which each sends, its right to be a recipient, its
    address."""
    job = layout.job
    for number in (job.id, job.exact_id) if job.exact_slots else (job.id,):
        for rank, host in enumerate(layout.members):
            yield from _worker(number, rank, host)


def _worker(job: int, rank: int, host: TopologyHost) -> Iterator[fy.P4TableEntry]:
    yield _entry(
        MEMBERS,
        {"standard_metadata.ingress_port": host.port, "hdr.kofn.job": job, "hdr.kofn.worker": rank},
        fy.P4TableAction("ingress.admission.admit_host"),
    )
    yield _entry(
        "ingress.admission.recipients",
        {"hdr.kofn.job": job, "hdr.kofn.recipient": rank},
        fy.P4TableAction("ingress.admission.accept_recipient"),
    )
    yield _entry(
        "egress.deliver.hosts",
        {"standard_metadata.egress_port": host.port, "hdr.kofn.job": job},
        fy.P4TableAction("egress.deliver.to_host", mac=host.mac, ip=host.ip, rack=0, worker=rank),
    )


def _entry(table: str, match: dict[str, int], action: fy.P4TableAction) -> fy.P4TableEntry:
    """Return a table entry with exact matches."""
    return fy.P4TableEntry(table, match=fy.P4TableMatch(match), action=action)
