"""Samples during a trial: the bytes over each job's links, and the slots of its iteration."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import finsy as fy
import msgspec

from kofn.run.job_trial import JobTrial
from kofn.run.network import NetworkClient
from kofn.run.page import Watched
from kofn_common.config.job import SWITCH
from kofn_common.config.network import NetworkSection
from kofn_common.results.link_bytes import LinkBytes
from kofn_common.results.samples import Sample, SlotSample
from kofn_controller.errors import InspectionError
from kofn_controller.p4runtime.occupancy import Slot
from kofn_controller.p4runtime.slot_window import SlotWindow, slot_window

LINKS_S = 0.2
SLOTS_EVERY = 2
"""Samples of links for each sample of slots."""


class Sampler:
    """Writes every job's samples.jsonl until it is cancelled."""

    def __init__(
        self, network: NetworkClient, settings: NetworkSection, trainings: Sequence[JobTrial], watched: Watched
    ) -> None:
        """Sample slots while the page has viewers, if the switch sums and can be read."""
        self._network, self._trainings = network, trainings
        self._address, self._device = f"127.0.0.1:{settings.p4runtime_port}", settings.device_id
        self._watched = watched if settings.target == "embedded" else lambda: False
        self._begin = network.link_bytes()
        self._windows: dict[int, SlotWindow] = {}

    async def run(self) -> None:
        """Sample repeatedly. After a failure, sampling continues when the switch is back, or when files can be opened
        and written again."""
        while True:
            async with AsyncExitStack() as connections:
                with contextlib.suppress(InspectionError, fy.P4ClientError, OSError):
                    for number in itertools.count(1):
                        with_slots = number % SLOTS_EVERY == 0 and self._watched()
                        await self._sample(connections if with_slots else None)
                        await asyncio.sleep(LINKS_S)
            self._windows.clear()
            await asyncio.sleep(LINKS_S)

    async def _sample(self, connections: AsyncExitStack | None) -> None:
        """Write a sample for each job. If `connections` is given, a sample also has the slots; `connections` then owns
        each new connection to the switch."""
        for training in self._trainings:
            slots = await self._slots(training, connections) if connections else None
            links = self._links(training)
            with training.folder.samples.open("ab") as out:
                out.write(msgspec.json.encode(Sample(time=time.time(), links=links, slots=slots)) + b"\n")

    def _links(self, training: JobTrial) -> LinkBytes:
        now = self._network.link_bytes()
        return {
            node: (now[node][0] - self._begin[node][0], now[node][1] - self._begin[node][1])
            for node in (*training.programs.nodes, *self._network.ready.uplinks)
        }

    async def _slots(self, training: JobTrial, connections: AsyncExitStack) -> tuple[SlotSample, ...] | None:
        job = training.config.job
        training.view.poll()
        if job.collective != SWITCH or training.view.newest is None:
            return None
        if job.id not in self._windows:
            window = slot_window(self._address, device_id=self._device, job=job.id)
            self._windows[job.id] = await connections.enter_async_context(window)
        slots = await self._windows[job.id].read(training.view.newest.iteration + 1)
        return tuple(sampled(slot, job.workers) for slot in slots if slot.iteration)


def sampled(slot: Slot, workers: int) -> SlotSample:
    present = "".join("1" if rank in slot.present else "0" for rank in range(workers))
    return SlotSample(iteration=slot.iteration, block=slot.block, closed=slot.closed, present=present)
