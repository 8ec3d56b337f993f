"""Builds the table entries, multicast groups and digest setting of all jobs in a switch, from their configurations,
the topology and the switch's role.

Tables, actions and fields have p4info's names. The module knows nothing of connections.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import finsy as fy

from kofn_common.wire.packet import WIDTHS, WORD_BITS, Lanes
from kofn_controller.p4runtime.builders import SwitchEntry, exact, forwarding, group
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.roles import ONLY_SWITCH, SwitchRole

JOBS = "ingress.admission.jobs"
MEMBERS = "ingress.admission.members"
RECIPIENTS = "ingress.admission.recipients"
DIGEST = "arrival_t"
COUNTER = "ingress.verdicts"
REFUSED = "ingress.refused"
VERDICT_TYPE = "verdict_t"


def high_bits(width: int) -> int:
    """Return a word with the top bit of every lane of `width` bits set."""
    lane = 1 << (width - 1)
    return sum(lane << shift for shift in range(0, WORD_BITS, width))


def job_entries(layout: SlotLayout, k: int, generation: int, role: SwitchRole = ONLY_SWITCH) -> list[fy.P4TableEntry]:
    """Return the job's own entry, which has k and the generation: one MODIFY of this entry changes k. If the job has
    slots for exact sums, an entry for them follows: exact sums need all workers, and use the slots after the job's own.
    """
    job = layout.job
    parts = [(job.id, k, layout.base, job.slots)]
    parts += [(job.exact_id, job.workers, layout.base + job.slots, job.exact_slots)] if job.exact_slots else []
    return [
        exact(
            JOBS,
            {"hdr.kofn.job": number},
            role.job(layout, k=needed, base=base, group=job.id, mask=slots - 1, generation=generation),
        )
        for number, needed, base, slots in parts
    ]


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


def fixed_entries(layouts: Sequence[SlotLayout], role: SwitchRole = ONLY_SWITCH) -> list[SwitchEntry]:
    """Return all entries and groups of the jobs in a switch of this role, except the digest setting and the jobs' own
    entries.
    """
    return [
        *(results_group(layout, role) for layout in layouts),
        *forwarding(layouts, role),
        *_lanes(),
        *(entry for layout in layouts for entry in _members(layout, role)),
    ]


def results_group(
    layout: SlotLayout, role: SwitchRole = ONLY_SWITCH, followers: frozenset[int] = frozenset()
) -> fy.P4MulticastGroupEntry:
    """Return the multicast group of a job's results, without the workers of these ranks, which follow a peer."""
    return group(layout.job.id, role.group(layout, followers))


def digest_entry(layouts: Sequence[SlotLayout]) -> fy.P4DigestEntry:
    """Return the digest setting: the switch sends arrivals at once, or with many workers in short lists.

    A list is sent when it is full. There is no timeout, because with any timeout BMv2 delays digests by 100 to 200 ms.
    There is no acknowledgement, because the sequence number makes each digest new. (BMv2 1.15.5 exits if a pipeline is
    pushed while it waits for an acknowledgement.)
    """
    size = max(1, min(layout.rack_workers for layout in layouts) // 4)
    return fy.P4DigestEntry(DIGEST, max_list_size=size, max_timeout_ns=0, ack_timeout_ns=0)


def _lanes() -> Iterator[fy.P4TableEntry]:
    """Yield an entry for each lane width, and one for votes, which have no lanes."""
    highs = {code: high_bits(width) for code, width in enumerate(WIDTHS)} | {Lanes.VOTES: 0}
    for code, high in highs.items():
        action = fy.P4TableAction("ingress.admission.set_lanes", high=high)
        yield exact("ingress.admission.lanes", {"hdr.kofn.lanes": code}, action)


def _members(layout: SlotLayout, role: SwitchRole) -> Iterator[fy.P4TableEntry]:
    """Yield the entries of a job's members: the port from which each neighbour sends, its address, and each worker's
    right to be a recipient."""
    job = layout.job
    for number in (job.id, job.exact_id) if job.exact_slots else (job.id,):
        for neighbour in role.neighbours(layout):
            job_number = {"hdr.kofn.job": number}
            sender = {"standard_metadata.ingress_port": neighbour.port, "hdr.kofn.worker": neighbour.worker}
            yield exact(MEMBERS, sender | job_number, neighbour.admit)
            receiver = {"standard_metadata.egress_port": neighbour.port} | job_number
            yield exact("egress.deliver.hosts", receiver, neighbour.address)
        for place in layout.places:
            yield exact(
                RECIPIENTS,
                {"hdr.kofn.job": number, "hdr.kofn.recipient": place},
                fy.P4TableAction("ingress.admission.accept_recipient"),
            )
