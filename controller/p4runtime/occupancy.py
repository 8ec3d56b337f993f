"""The content of a running switch's slots, read over P4Runtime: which block, from which workers, and which are missing.

Only reads, as any client may; needs a switch that can read registers, which BMv2 cannot. Packets flow meanwhile: a slot
that took another block while it was read is read again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import finsy as fy
from finsy import GRPCStatusCode
from finsy.proto import p4r

from kofn.controller.errors import InspectionError
from kofn.controller.p4runtime.entries import JOBS, MEMBERS
from kofn.host.wire.packet import members_of

BLOCK_IDS, CONTRIBUTORS, CLOSED = "ingress.slot.block_ids", "ingress.slot.members", "ingress.slot.closed"
ALL = (
    BLOCK_IDS,
    CLOSED,
    CONTRIBUTORS,
    BLOCK_IDS,
)  # in the order in which they are read; the block_id may have changed meanwhile
ATTEMPTS = 10
NUMBER = (1 << 32) - 1  # an block_id is three of them: generation, iteration, block
NO_REGISTERS = "this switch does not read registers over P4Runtime (BMv2 cannot); kofn slots needs the embedded switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot: empty (iteration 0), open, or closed by the sum of k workers until another block takes it."""

    slot: int  # the job's own number
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
    """All slots of one job; the sum of `k` workers closes a block."""

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
    workers: tuple[int, ...]

    def slot(self, number: int, block_id: int, contributors: int, done: int) -> Slot:
        """Build a slot from the registers' cells; a slot of another generation is empty."""
        generation, iteration, block = block_id >> 64, block_id >> 32 & NUMBER, block_id & NUMBER
        if generation != self.generation or iteration == 0:
            return Slot(slot=number, iteration=0, block=0, closed=False, present=(), missing=())
        there = members_of(contributors)
        inside = [rank for rank in self.workers if rank in there]
        outside = [rank for rank in self.workers if rank not in there]
        return Slot(
            slot=number,
            iteration=iteration,
            block=block,
            closed=bool(done),
            present=tuple(inside),
            missing=tuple(outside),
        )


async def read_slots(address: str, device_id: int, job: int | None = None) -> list[JobSlots]:
    """The slots of every job, or of one.  Raises InspectionError, and P4ClientError where no switch answers."""
    async with fy.P4Client(address, wait_for_ready=False) as client:
        reader = await open_reader(client, address, device_id)
        jobs = await reader.jobs() if job is None else [await reader.job(job)]
        return [await reader.slots(found) for found in jobs]


async def open_reader(client: fy.P4Client, address: str, device_id: int) -> "SlotReader":
    """A reader of the switch at the other end; InspectionError where that does not run kofn's program."""
    return SlotReader(client, await _schema(client, address, device_id), device_id, address)


async def _schema(client: fy.P4Client, address: str, device_id: int) -> fy.P4Schema:
    """Return the schema of the switch's program; InspectionError if that is not kofn's."""
    request = p4r.GetForwardingPipelineConfigRequest(device_id=device_id)
    try:
        schema = fy.P4Schema((await client.request(request)).config.p4info)
    except fy.P4ClientError as error:
        if not error.is_pipeline_missing:
            raise
        raise InspectionError(f"the switch at {address} runs no program: a controller has to push it") from error
    if JOBS not in (table.name for table in schema.tables):
        raise InspectionError(f"the switch at {address} runs another program than kofn's: it has no table {JOBS}")
    return schema


class SlotReader:
    """Reads of one switch."""

    def __init__(self, client: fy.P4Client, schema: fy.P4Schema, device_id: int, address: str) -> None:
        self._client, self._address = client, address
        self._schema = schema
        self._device_id = device_id

    async def jobs(self) -> list[SwitchJob]:
        """The jobs that the switch knows."""
        workers: dict[int, set[int]] = {}
        for match, _ in await self._rows(MEMBERS):
            workers.setdefault(match["job"], set()).add(match["worker"])
        return [
            SwitchJob(
                job=match["job"],
                workers=tuple(sorted(workers.get(match["job"], ()))),
                **{name: values[name] for name in ("k", "base", "mask", "generation")},
            )
            for match, values in await self._rows(JOBS)
        ]

    async def job(self, number: int) -> SwitchJob:
        """One of them; InspectionError names those that there are."""
        jobs = {found.job: found for found in await self.jobs()}
        if number not in jobs:
            known = ", ".join(map(str, jobs)) or "none"
            raise InspectionError(f"the switch at {self._address} has no job {number}; it has {known}")
        return jobs[number]

    async def _rows(self, table: str) -> list[tuple[dict[str, int], dict[str, int]]]:
        """The match and the action's parameters of a table's entries."""
        rows = []
        for entity in await self._read([fy.P4TableEntry(table).encode(self._schema)]):
            entry = fy.P4TableEntry.decode(entity, self._schema)
            if not entry.is_default_action:
                assert isinstance(entry.match, fy.P4TableMatch) and isinstance(entry.action, fy.P4TableAction)
                rows.append((_numbers(entry.match), _numbers(entry.action.args)))
        return rows

    async def slots(self, job: SwitchJob) -> JobSlots:
        """All slots of a job."""
        return JobSlots(job=job.job, k=job.k, workers=job.workers, slots=await self.some(job, range(job.mask + 1)))

    async def some(self, job: SwitchJob, wanted: Sequence[int]) -> tuple[Slot, ...]:
        """Some slots, each as it was at some moment, unless it takes blocks faster than it can be read."""
        found: dict[int, Slot] = {}
        for _ in range(ATTEMPTS):
            moved = []
            for slot, cells in zip(wanted, await self._cells([job.base + slot for slot in wanted]), strict=True):
                block_id, done, contributors, later = cells
                found[slot] = job.slot(slot, block_id, contributors, done)
                if later != block_id:
                    moved.append(slot)
            wanted = moved
        return tuple(found.values())

    async def _cells(self, indices: Sequence[int]) -> list[tuple[int, ...]]:
        """The cells of ALL for each index.  They are read index by index: a block is open for milliseconds only."""
        if not indices:
            return []
        ids = [self._schema.registers[name].id for name in ALL]
        wanted = [_cell(register_id, index) for index in indices for register_id in ids]
        try:
            values = [_value(entity) for entity in await self._read(wanted)]
        except fy.P4ClientError as error:
            if error.code != GRPCStatusCode.UNIMPLEMENTED and "register" not in str(error).lower():
                raise
            raise InspectionError(NO_REGISTERS) from error
        return list(zip(*[iter(values)] * len(ids), strict=True))

    async def _read(self, entities: Iterable[p4r.Entity]) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self._device_id, entities=entities)
        return [entity async for reply in self._client.request_iter(request) for entity in reply.entities]


def _numbers(values: Any) -> dict[str, int]:
    return {name: int(value) for name, value in values.items()}


def _cell(register_id: int, index: int) -> p4r.Entity:
    return p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register_id, index=p4r.Index(index=index)))


def _value(entity: p4r.Entity) -> int:
    return int.from_bytes(entity.register_entry.data.bitstring, "big")
