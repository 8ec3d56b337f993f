"""The data plane of a job.collective: a P4 program, and what the controller installs and reads with it.

The module knows no protocol. `switch_link.SwitchLink` keeps the entries in a switch; planes/kofn.py is kofn's own.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import finsy as fy

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.plugins import DATA_PLANES
from kofn_common.wire.packet import PORT
from kofn_controller.p4runtime.builders import SwitchEntry
from kofn_controller.p4runtime.entries import Found
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.p4c import compiled
from kofn_controller.p4runtime.program import CompiledProgram, read
from kofn_controller.p4runtime.roles import ONLY_SWITCH, SwitchRole
from kofn_controller.p4runtime.slots import JobSlots


class DataPlane(ABC):
    """A P4 program for v1model, with the entries of the jobs of a run, which share the switch.

    The methods' defaults suit a program whose jobs need all workers. For such a program the controller admits workers,
    and restores the entries when it reconnects to the switch, but takes no decisions.
    """

    program: ClassVar[Path]
    """The path of the P4 source, which p4c compiles into build/ in the source's folder; or the path of a NAME.json that
    p4c has written, with NAME.p4info.txtpb beside it."""
    port: ClassVar[int] = PORT
    """The UDP port of the program's packets, to which [[fault]] with where = "switch" and network.trace apply."""
    counters: ClassVar[Mapping[str, Sequence[str]]] = {}
    """For each counter, by its name in p4info, the names of its indices. The report shows the packets of each index."""
    trees: ClassVar[bool] = False
    """Whether there are entries for the roles of a tree's switches (job.racks)."""
    exact_calls: ClassVar[bool] = False
    """Whether there are entries for the calls of PyTorch's process group (job.exact_slots)."""
    holds_k: ClassVar[bool] = False
    """Whether the switch has an entry with k and the generation of each job (`job_entries`, `found`)."""

    @property
    def compiled(self) -> CompiledProgram:
        """p4c's output. ConfigError if the source cannot be compiled."""
        return compiled(self.program)

    @abstractmethod
    def entries(self, layouts: Sequence[SlotLayout], role: SwitchRole = ONLY_SWITCH) -> Iterable[SwitchEntry]:
        """Return the table entries and multicast groups of all jobs in a switch of this role."""

    def job_entries(self, layout: SlotLayout, k: int, generation: int, role: SwitchRole) -> list[fy.P4TableEntry]:
        """Return a job's own entries, of which the first has k and the generation."""
        return []

    def groups(self, layout: SlotLayout, followers: frozenset[int], role: SwitchRole) -> list[SwitchEntry]:
        """Return the job's multicast groups for results, without the workers of these ranks, which follow a peer."""
        return []

    def found(self, present: Iterable[Any], schema: fy.P4Schema) -> dict[int, Found]:
        """Return the jobs' own entries among a switch's entities, by job."""
        return {}

    def slot_bits(self, job: JobSection) -> int:
        """Return the bits of the switch's registers for each slot of a job; 0: unknown, or there are no slots."""
        return 0

    def digests(self, layouts: Sequence[SlotLayout]) -> list[fy.P4DigestEntry]:
        """Return the settings of the program's digests."""
        return []

    async def listen(self, switch: fy.Switch, jobs: Sequence[JobSlots]) -> None:
        """Pass the switch's digests to the jobs, until cancelled."""
        await asyncio.Event().wait()

    async def count(self, switch: fy.Switch) -> dict[str, int]:
        """Read the counters: packets by name."""
        counts = {}
        for counter, names in self.counters.items():
            async for entry in read(switch, [fy.P4CounterEntry(counter)]):
                if entry.index < len(names):
                    counts[names[entry.index]] = entry.packet_count
        return counts

    async def refused(self, switch: fy.Switch, ports: Iterable[int]) -> dict[int, int]:
        """Read the number of packets that the switch has refused, by the sender's port; {} if it does not count."""
        return {}


def load_data_plane(name: str) -> type[DataPlane]:
    """Return the data plane of this name; ConfigError if there is none, or it is not a DataPlane."""
    base: type[DataPlane] = DataPlane  # type: ignore[type-abstract]
    return DATA_PLANES.load_class(name, base)


def data_plane_of(collectives: Iterable[str]) -> DataPlane:
    """Return the data plane of these job.collectives. ConfigError if they need different data planes."""
    by_name = {load_collective(name).data_plane: name for name in collectives}
    if len(by_name) > 1:
        needs = ", ".join(f"{name!r} needs {plane!r}" for plane, name in by_name.items())
        raise ConfigError(f"job.collective of all jobs must need the same data plane, got {needs}")
    return load_data_plane(next(iter(by_name)))()
