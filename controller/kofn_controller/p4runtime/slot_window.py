"""Reads the slots of the present iteration repeatedly over one connection.

A job has many slots, of which one iteration uses a few. An iteration's first block is in slot (iteration * stride)
modulo the job's slots, where the stride is the number of blocks in an iteration (host/kofn_host/protocol/core.h). One
read of all slots yields the stride.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import finsy as fy

from kofn_controller.p4runtime.occupancy import Slot, SlotReader, SwitchJob, open_reader

WINDOW = 32
"""Maximum number of slots in one read."""


class SlotWindow:
    """Reads the slots of one job.

    async with slot_window("127.0.0.1:50051", device_id=0, job=1) as window:
        slots = await window.read(iteration=41)
    """

    def __init__(self, reader: SlotReader, job: SwitchJob) -> None:
        self._reader, self._job = reader, job
        self._stride = 0  # 0: unknown

    async def read(self, iteration: int) -> tuple[Slot, ...]:
        """Return at most WINDOW slots of this iteration, spread over its blocks. Raises InspectionError and
        P4ClientError.

        A slot with an older block is returned as open and empty. While the stride is unknown, the slots are spread over
        all slots of the job.
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
    """Return the number of slots from one iteration's first block to the next iteration's first block; 0 if no two
    successive iterations are seen.

    `placed`: the iteration and block in each slot, in order; iteration 0 for an empty slot.

    >>> stride([(0, 0), (4, 0), (4, 1), (5, 0), (5, 1), (6, 0)])
    2
    """
    begins = {iteration: slot for slot, (iteration, block) in enumerate(placed) if iteration and block == 0}
    steps = [
        (begins[iteration + 1] - slot) % len(placed) for iteration, slot in begins.items() if iteration + 1 in begins
    ]
    return max(set(steps), key=steps.count, default=0)


@asynccontextmanager
async def slot_window(address: str, *, device_id: int, job: int) -> AsyncIterator[SlotWindow]:
    """Open a SlotWindow. InspectionError if the slots cannot be read or there is no such job, P4ClientError if no
    switch answers.
    """
    async with fy.P4Client(address, wait_for_ready=False) as client:
        reader = await open_reader(client, address, device_id)
        yield SlotWindow(reader, await reader.job(job))
