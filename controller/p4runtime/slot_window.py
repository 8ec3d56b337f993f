"""The slots of the iteration in progress, read again and again over one connection.

A job has many slots, the iteration in progress few of them.  An iteration's first block
is at slot (iteration * stride) modulo the job's slots, where the stride is the number of blocks in an iteration
(host/protocol/core.h); one look at all slots finds it out.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import finsy as fy

from kofn.controller.p4runtime.occupancy import Slot, SlotReader, SwitchJob, open_reader

WINDOW = 32
"""Slots in one look, at most."""


class SlotWindow:
    """Looks at one job.

    async with slot_window("127.0.0.1:50051", device_id=0, job=1) as window:
        slots = await window.read(iteration=41)
    """

    def __init__(self, reader: SlotReader, job: SwitchJob) -> None:
        self._reader, self._job = reader, job
        self._stride = 0  # 0: not known yet

    async def read(self, iteration: int) -> tuple[Slot, ...]:
        """Return the present slots of this iteration, WINDOW at most; InspectionError, P4ClientError.

        A slot that still holds an older block is open and empty. If an iteration has too many blocks to tell where it
        begins, the slots are spread over all of its blocks.
        """
        slots = self._job.mask + 1
        if not self._stride:
            placed = (await self._reader.slots(self._job)).slots
            self._stride = stride([(slot.iteration, slot.block) for slot in placed])
        if not self._stride:
            return await self._reader.some(self._job, range(0, slots, -(-slots // WINDOW)))
        blocks = range(0, self._stride, -(-self._stride // WINDOW))
        found = await self._reader.some(self._job, [(iteration * self._stride + block) % slots for block in blocks])
        waiting = Slot(slot=0, iteration=iteration, block=0, closed=False, present=(), missing=self._job.workers)
        return tuple(
            slot if slot.iteration >= iteration else replace(waiting, slot=slot.slot, block=block)
            for block, slot in zip(blocks, found, strict=True)
        )


def stride(placed: Sequence[tuple[int, int]]) -> int:
    """Slots from one iteration's first block to the next one's; 0 where no two neighbours are seen.

    `placed`: for each slot in order, the iteration and the block that it holds; iteration 0 where it is empty.

    >>> stride([(0, 0), (4, 0), (4, 1), (5, 0), (5, 1), (6, 0)])
    2
    """
    begins = {iteration: slot for slot, (iteration, block) in enumerate(placed) if iteration and block == 0}
    steps = [(begins[one + 1] - begins[one]) % len(placed) for one in begins if one + 1 in begins]
    return max(set(steps), key=steps.count, default=0)


@asynccontextmanager
async def slot_window(address: str, *, device_id: int, job: int) -> AsyncIterator[SlotWindow]:
    """InspectionError where the switch cannot be looked into or has no such job, P4ClientError where none answers."""
    async with fy.P4Client(address, wait_for_ready=False) as client:
        reader = await open_reader(client, address, device_id)
        yield SlotWindow(reader, await reader.job(job))
