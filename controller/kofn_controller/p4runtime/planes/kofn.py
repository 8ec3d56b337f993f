"""kofn's data plane: p4src/kofn.p4, with k and the generation of each job in an entry, digests, and verdicts."""

from collections.abc import Iterable, Sequence
from typing import Any

import finsy as fy

from kofn_common.config.job import JobSection
from kofn_common.places import folder_of
from kofn_common.wire.packet import WORD_BITS
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.p4runtime.builders import SwitchEntry
from kofn_controller.p4runtime.data_plane import DataPlane
from kofn_controller.p4runtime.entries import (
    COUNTER,
    DIGEST,
    REFUSED,
    VERDICT_TYPE,
    Found,
    digest_entry,
    find_jobs,
    fixed_entries,
    job_entries,
    results_group,
)
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.program import CompiledProgram, read
from kofn_controller.p4runtime.roles import ONLY_SWITCH, SwitchRole
from kofn_controller.p4runtime.slots import JobSlots

_DIGEST_QUEUE = 1024


class KofnPlane(DataPlane):
    """p4src/kofn.p4, or another compiled program with its tables."""

    program = folder_of("kofn_p4src") / "kofn.p4"
    trees = True
    exact_calls = True
    holds_k = True

    def __init__(self, files: CompiledProgram | None = None) -> None:
        self._files = files or CompiledProgram()

    @property
    def compiled(self) -> CompiledProgram:
        """The output that `make p4` writes."""
        return self._files

    def entries(self, layouts: Sequence[SlotLayout], role: SwitchRole = ONLY_SWITCH) -> Iterable[SwitchEntry]:
        return fixed_entries(layouts, role)

    def job_entries(self, layout: SlotLayout, k: int, generation: int, role: SwitchRole) -> list[fy.P4TableEntry]:
        return job_entries(layout, k, generation, role)

    def groups(self, layout: SlotLayout, followers: frozenset[int], role: SwitchRole) -> list[SwitchEntry]:
        return [results_group(layout, role, followers)]

    def found(self, present: Iterable[Any], schema: fy.P4Schema) -> dict[int, Found]:
        return find_jobs(present, schema)

    def slot_bits(self, job: JobSection) -> int:
        """Return the bits of the sum, of its members in one rack, and of slot.p4's and tell.p4's registers."""
        return job.words * WORD_BITS + 481

    def digests(self, layouts: Sequence[SlotLayout]) -> list[fy.P4DigestEntry]:
        return [digest_entry(layouts)]

    async def listen(self, switch: fy.Switch, jobs: Sequence[JobSlots]) -> None:
        """Pass the arrivals to their jobs."""
        names = verdict_names(switch.p4info)
        by_id = {slots.layout.job.id: slots for slots in jobs}
        async for digests in switch.read_digests(DIGEST, queue_size=_DIGEST_QUEUE):
            for arrival in digests:
                if arrival["job"] in by_id:
                    by_id[arrival["job"]].arrived(_arrival(arrival, names))

    async def count(self, switch: fy.Switch) -> dict[str, int]:
        """Read the packets by verdict."""
        names = verdict_names(switch.p4info)
        entries = [entry async for entry in read(switch, [fy.P4CounterEntry(COUNTER)])]
        return {names[entry.index]: entry.packet_count for entry in entries if entry.index in names}

    async def refused(self, switch: fy.Switch, ports: Iterable[int]) -> dict[int, int]:
        entries = [fy.P4CounterEntry(REFUSED, index=port) for port in ports]
        return {entry.index: entry.packet_count async for entry in read(switch, entries)}


def verdict_names(schema: fy.P4Schema) -> dict[int, str]:
    """Return the names of the verdicts by value, from p4info."""
    return {value: name for name, value in schema.type_info.serializable_enums[VERDICT_TYPE].members.items()}


def _arrival(fields: dict[str, int], names: dict[int, str]) -> Arrival:
    """Return a digest's values as an Arrival."""
    return Arrival(
        worker=fields["worker"],
        iteration=fields["iteration"],
        verdict=names.get(fields["verdict"], str(fields["verdict"])),
        timestamp_us=fields["timestamp"],
    )


kofn = KofnPlane
