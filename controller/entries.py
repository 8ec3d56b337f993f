"""The table entries, multicast groups and digest setting of one job, from its configuration and the topology.

Tables, actions and fields have p4info's names. Knows nothing of connections.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import finsy as fy

from controller.errors import PushError
from controller.topology import Host
from run.config import Job

FLOOD_GROUP = 0x100
"""Multicast group of all ports; a job's own group is its id, 1 to 255."""

BROADCAST_MAC = 0xFFFF_FFFF_FFFF

WORD_BITS = 2048

LANE_WIDTHS = (32, 16, 8, 4)
"""By the header's `lanes` code."""

DIGEST = "arrival_t"
COUNTER = "ingress.verdicts"
VERDICT_TYPE = "verdict_t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A job and its hosts in rank order; `members` are those that take part."""

    job: Job
    hosts: tuple[Host, ...]

    def __post_init__(self) -> None:
        """PushError where the job does not fit the topology."""
        if not 1 <= self.job.id <= 255:
            raise PushError(f"job.id is {self.job.id}: 1 to 255 is allowed (it is the job's multicast group)")
        if self.job.workers > len(self.hosts):
            raise PushError(f"job.workers is {self.job.workers}: the topology has {len(self.hosts)} hosts")

    @property
    def members(self) -> tuple[Host, ...]:
        """The hosts of the job's workers."""
        return self.hosts[: self.job.workers]


def high_bits(width: int) -> int:
    """A word with the top bit of every lane of `width` bits set."""
    lane = 1 << (width - 1)
    return sum(lane << shift for shift in range(0, WORD_BITS, width))


def job_entry(job: Job, k: int) -> fy.P4TableEntry:
    """The entry that holds k: changing k is one MODIFY of it."""
    action = fy.P4TableAction("ingress.admission.set_job", k=k, group=job.id, base=0, mask=job.slots - 1)
    return _entry("ingress.admission.jobs", {"hdr.kofn.job": job.id}, action)


def all_entries(layout: Layout, k: int) -> list[fy.P4TableEntry | fy.P4MulticastGroupEntry]:
    """Everything that the job needs in the switch, but for the digest."""
    return [
        *multicast_groups(layout),
        *_l2(layout),
        *_lanes(),
        *_workers(layout),
        job_entry(layout.job, k),  # last: from here on blocks are accepted
    ]


def multicast_groups(layout: Layout) -> list[fy.P4MulticastGroupEntry]:
    """The job's group, and the group of all ports."""
    return [
        fy.P4MulticastGroupEntry(layout.job.id, replicas=[host.port for host in layout.members]),
        fy.P4MulticastGroupEntry(FLOOD_GROUP, replicas=[host.port for host in layout.hosts]),
    ]


def digest_entry(layout: Layout) -> fy.P4DigestEntry:
    """Arrivals come at once, many workers' in short lists: a silent worker is known by what the others sent.

    No timeout: with one, BMv2 holds them back for 100 to 200 ms, however small it is; without one, until a list is
    full. No acknowledgement: the sequence number makes each digest new. (BMv2 1.15.5 ends itself when a pipeline is
    pushed while it waits for one.)
    """
    size = max(1, layout.job.workers // 4)
    return fy.P4DigestEntry(DIGEST, max_list_size=size, max_timeout_ns=0, ack_timeout_ns=0)


def _l2(layout: Layout) -> Iterator[fy.P4TableEntry]:
    """Each host's MAC to its port, broadcasts to all."""
    for host in layout.hosts:
        action = fy.P4TableAction("ingress.forward.to_port", port=host.port)
        yield _entry("ingress.forward.l2", {"hdr.ethernet.dst_addr": host.mac}, action)
    flood = fy.P4TableAction("ingress.forward.flood", group=FLOOD_GROUP)
    yield _entry("ingress.forward.l2", {"hdr.ethernet.dst_addr": BROADCAST_MAC}, flood)


def _lanes() -> Iterator[fy.P4TableEntry]:
    """One entry for each lane width."""
    for code, width in enumerate(LANE_WIDTHS):
        action = fy.P4TableAction("ingress.admission.set_lanes", high=high_bits(width))
        yield _entry("ingress.admission.lanes", {"hdr.kofn.lanes": code}, action)


def _workers(layout: Layout) -> Iterator[fy.P4TableEntry]:
    """Who may speak from which port, who may own a block, and how a packet to it is addressed."""
    job = layout.job.id
    for host in layout.members:
        yield _entry(
            "ingress.admission.members",
            {"standard_metadata.ingress_port": host.port, "hdr.kofn.job": job, "hdr.kofn.worker": host.rank},
            fy.P4TableAction("ingress.admission.admit", most=1),
        )
        yield _entry(
            "ingress.admission.owners",
            {"hdr.kofn.job": job, "hdr.kofn.owner": host.rank},
            fy.P4TableAction("ingress.admission.send_to", port=host.port),
        )
        yield _entry(
            "egress.deliver.hosts",
            {"standard_metadata.egress_port": host.port, "hdr.kofn.job": job},
            fy.P4TableAction("egress.deliver.to_host", mac=host.mac, ip=host.ip, worker=host.rank),
        )


def _entry(table: str, match: dict[str, int], action: fy.P4TableAction) -> fy.P4TableEntry:
    """A table entry of exact matches."""
    return fy.P4TableEntry(table, match=fy.P4TableMatch(match), action=action)
