"""Reads the slots of a running switch over P4Runtime: the block in each slot, its contributors, and the
missing workers.

The module only reads, so it need not be the switch's primary client. It needs a switch that can read registers, which
BMv2 cannot. Packets flow while slots are read: a slot that takes another block during its read is read again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import finsy as fy
from finsy import GRPCStatusCode
from finsy.proto import p4r

from kofn_common.wire.packet import MEMBERS_BITS, members_of
from kofn_common.wire.sizes import RACKS_MAX, SLOTS
from kofn_controller.errors import InspectionError
from kofn_controller.p4runtime.entries import JOBS, RECIPIENTS

BLOCK_IDS, CONTRIBUTORS, STATES = "ingress.slot.block_ids", "ingress.members", "ingress.slot.states"
ATTEMPTS = 10
NUMBER = (1 << 32) - 1  # mask of each of a block id's three numbers: generation, iteration, block
NO_REGISTERS = "kofn slots needs the embedded switch: this switch does not read registers over P4Runtime (BMv2 cannot)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The content of one slot. The slot is empty (iteration 0), open, or closed by k contributions. It stays closed
    until another block takes it.
    """

    slot: int  # counted from the job's first slot
    iteration: int
    block: int
    closed: bool
    present: tuple[int, ...]  # ranks in the sum
    missing: tuple[int, ...]  # the job's other ranks

    @property
    def state(self) -> str:
        return "empty" if self.iteration == 0 else "closed" if self.closed else "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSlots:
    """All slots of one job. `k` contributions close a block."""

    job: int
    k: int
    workers: tuple[int, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchJob:
    """A job's entries in the switch."""

    job: int
    k: int
    base: int
    mask: int
    generation: int
    racks: int  # 0: not a tree
    places: tuple[int, ...]  # the workers' places, by rank

    @property
    def workers(self) -> tuple[int, ...]:
        return tuple(range(len(self.places)))

    def cells(self, slot: int) -> list[tuple[str, int]]:
        """Return the registers' cells of a slot in the order of reading. The block id is read first and last: if the
        two values differ, another block has taken the slot. The register of members has SLOTS cells for each rack.
        """
        at = self.base + slot
        bitmaps = [(CONTRIBUTORS, SLOTS * rack + at) for rack in range(self.racks or 1)]
        return [(BLOCK_IDS, at), (STATES, at), *bitmaps, (BLOCK_IDS, at)]

    def slot(self, number: int, block_id: int, state: int, bitmaps: Sequence[int]) -> Slot:
        """Return a slot's content from its registers' cells. The slot counts as empty if its block is of another
        generation.
        """
        generation, iteration, block = block_id >> 64, block_id >> 32 & NUMBER, block_id & NUMBER
        if generation != self.generation or iteration == 0:
            return Slot(slot=number, iteration=0, block=0, closed=False, present=(), missing=())
        there = members_of(
            sum(bitmap << MEMBERS_BITS * rack for rack, bitmap in enumerate(bitmaps) if state >> rack & 1), self.places
        )
        inside = [rank for rank in self.workers if rank in there]
        outside = [rank for rank in self.workers if rank not in there]
        return Slot(
            slot=number,
            iteration=iteration,
            block=block,
            closed=bool(state >> RACKS_MAX),
            present=tuple(inside),
            missing=tuple(outside),
        )


async def read_slots(address: str, device_id: int, job: int | None = None) -> list[JobSlots]:
    """Return the slots of all jobs, or of one job. InspectionError if they cannot be read, P4ClientError if no switch
    answers.
    """
    async with fy.P4Client(address, wait_for_ready=False) as client:
        reader = await open_reader(client, address, device_id)
        jobs = await reader.jobs() if job is None else [await reader.job(job)]
        return [await reader.slots(found) for found in jobs]


async def open_reader(client: fy.P4Client, address: str, device_id: int) -> "SlotReader":
    """Return a reader of the switch; InspectionError if it does not run kofn's program."""
    return SlotReader(client, await _schema(client, address, device_id), device_id, address)


async def _schema(client: fy.P4Client, address: str, device_id: int) -> fy.P4Schema:
    """Return the schema of the switch's program; InspectionError if it is not kofn's."""
    request = p4r.GetForwardingPipelineConfigRequest(device_id=device_id)
    try:
        schema = fy.P4Schema((await client.request(request)).config.p4info)
    except fy.P4ClientError as error:
        if not error.is_pipeline_missing:
            raise
        raise InspectionError(f"the switch at {address} runs no program: a controller must push it") from error
    if JOBS not in (table.name for table in schema.tables):
        raise InspectionError(f"the switch at {address} must run kofn's program, but has no table {JOBS}")
    return schema


class SlotReader:
    """Reads the jobs and slots of one switch."""

    def __init__(self, client: fy.P4Client, schema: fy.P4Schema, device_id: int, address: str) -> None:
        self._client, self._address = client, address
        self._schema = schema
        self._device_id = device_id

    async def jobs(self) -> list[SwitchJob]:
        """Return all jobs of the switch. InspectionError if it is a leaf, which has no whole sums."""
        places: dict[int, list[int]] = {}
        for match, _ in await self._rows(RECIPIENTS):
            places.setdefault(match["job"], []).append(match["recipient"])
        rows = await self._rows(JOBS)
        if any("uplink" in values for _, values in rows):
            raise InspectionError(f"the switch at {self._address} must be the root of its tree, got a leaf")
        return [
            SwitchJob(
                job=match["job"],
                places=tuple(sorted(places.get(match["job"], ()))),
                **{name: values[name] for name in ("k", "base", "mask", "generation", "racks")},
            )
            for match, values in rows
        ]

    async def job(self, number: int) -> SwitchJob:
        """Return the job with this number. If there is none, InspectionError lists the switch's jobs."""
        jobs = {found.job: found for found in await self.jobs()}
        if number not in jobs:
            known = f"one of {', '.join(map(str, jobs))}, the jobs of" if jobs else "installed in"
            raise InspectionError(f"the job must be {known} the switch at {self._address}, got {number}")
        return jobs[number]

    async def _rows(self, table: str) -> list[tuple[dict[str, int], dict[str, int]]]:
        """Return the match and the action's parameters of each entry of a table."""
        rows = []
        for entity in await self._read([fy.P4TableEntry(table).encode(self._schema)]):
            entry = fy.P4TableEntry.decode(entity, self._schema)
            if not entry.is_default_action:
                assert isinstance(entry.match, fy.P4TableMatch) and isinstance(entry.action, fy.P4TableAction)
                rows.append((_numbers(entry.match), _numbers(entry.action.args)))
        return rows

    async def slots(self, job: SwitchJob) -> JobSlots:
        """Return all slots of a job."""
        return JobSlots(job=job.job, k=job.k, workers=job.workers, slots=await self.some(job, range(job.mask + 1)))

    async def some(self, job: SwitchJob, wanted: Sequence[int]) -> tuple[Slot, ...]:
        """Return some slots. Each slot is consistent, unless it takes blocks faster than it can be read."""
        found: dict[int, Slot] = {}
        for _ in range(ATTEMPTS):
            moved = []
            for slot, cells in zip(wanted, await self._cells([job.cells(slot) for slot in wanted]), strict=True):
                block_id, state, *bitmaps, later = cells
                found[slot] = job.slot(slot, block_id, state, bitmaps)
                if later != block_id:
                    moved.append(slot)
            wanted = moved
        return tuple(found.values())

    async def _cells(self, slots: Sequence[Sequence[tuple[str, int]]]) -> list[tuple[int, ...]]:
        """Return the values of each slot's cells, read slot by slot, because blocks are open for milliseconds only."""
        if not slots:
            return []
        wanted = [_cell(self._schema.registers[name].id, index) for cells in slots for name, index in cells]
        try:
            values = [_value(entity) for entity in await self._read(wanted)]
        except fy.P4ClientError as error:
            if error.code != GRPCStatusCode.UNIMPLEMENTED and "register" not in str(error).lower():
                raise
            raise InspectionError(NO_REGISTERS) from error
        return list(zip(*[iter(values)] * len(slots[0]), strict=True))

    async def _read(self, entities: Iterable[p4r.Entity]) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self._device_id, entities=entities)
        return [entity async for reply in self._client.request_iter(request) for entity in reply.entities]


def _numbers(values: Any) -> dict[str, int]:
    return {name: int(value) for name, value in values.items()}


def _cell(register_id: int, index: int) -> p4r.Entity:
    return p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register_id, index=p4r.Index(index=index)))


def _value(entity: p4r.Entity) -> int:
    return int.from_bytes(entity.register_entry.data.bitstring, "big")
