"""A switch with kofn.p4 and one job, between raw sockets."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import finsy as fy
import pytest

from kofn_common.config.job import JobSection
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.program import CompiledProgram, push
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_host.transport.event_loop import EventLoop
from tests.controller.harness import star
from tests.dataplane.frames import GENERATION
from tests.dataplane.lab import Lab, lab
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS

HOSTS = 4


@dataclass
class DataPlane:
    """The switch under test; `install` gives it a job and empty slots."""

    switch: SwitchProcess
    lab: Lab
    arrivals: list[Arrival] = field(default_factory=list)
    loop: EventLoop = field(default_factory=EventLoop)

    def install(self, k: int, *, slots: int = 4096, exact_slots: int = 0) -> None:
        """Push a fresh pipeline with empty slots and the entries of one job."""
        self.arrivals.clear()
        job = JobSection(workers=HOSTS, slots=slots, exact_slots=exact_slots)
        layout = SlotLayout(job=job, hosts=star(HOSTS))
        self._slots = Slots(layout=layout, k=k, on_arrival=self.arrivals.append)
        self._link = SwitchLink(address=self.switch.address, device_id=0, plane=KofnPlane(), jobs=[self._slots])
        self._task = self.loop.run(self._connect())

    @property
    def switch_link(self) -> fy.Switch:
        """The P4Runtime client of the switch."""
        assert self._link._switch is not None
        return self._link._switch

    def uninstall(self) -> None:
        """Disconnect."""
        self.loop.run(self._disconnect())

    def put_job(self, *, k: int, generation: int, slots: int, workers: int = HOSTS) -> None:
        """Give the job slots of a new generation, whatever they contain, with room for `workers` workers."""
        self._slots.layout = SlotLayout(job=JobSection(workers=workers, slots=slots), hosts=star(workers))
        self.loop.run(self._slots.admit(generation, k))

    def crowd(self, workers: int) -> None:
        """Admit ranks without their own port: `workers` in all, distributed over the existing ports."""
        self.put_job(k=self._slots.k, generation=GENERATION, slots=4096, workers=workers)
        self.loop.run(self.switch_link.insert([member_entry(rank) for rank in range(HOSTS, workers)]))

    def set_k(self, k: int) -> None:
        self.loop.run(self._slots.set_k(k))

    def await_arrivals(self, count: int) -> list[Arrival]:
        self.loop.run(self._until(lambda: len(self.arrivals) >= count))
        return self.arrivals

    def count(self) -> dict[str, int]:
        """Return the number of packets by verdict."""
        return {name: packets for name, packets in self.loop.run(self._link.count()).items() if packets}

    def refused(self) -> dict[str, int]:
        """Return the number of refused packets by sender."""
        self.loop.run(self._link.recount())
        return self._link.refused

    async def _connect(self) -> asyncio.Task[None]:
        await self._until_it_answers()
        task = asyncio.create_task(self._link.run())
        await self._slots.admit(GENERATION, self._slots.k)
        await self._until(lambda: self._link.connected)
        return task

    async def _until_it_answers(self) -> None:
        """Push the program as soon as the switch has started."""
        async with asyncio.timeout(30):
            while True:
                try:
                    return await push(CompiledProgram(), self.switch.address, 0)
                except fy.P4ClientError:
                    await asyncio.sleep(0.05)

    async def _disconnect(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    @staticmethod
    async def _until(done: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not done():
                await asyncio.sleep(0.005)


def member_entry(rank: int) -> fy.P4TableEntry:
    """Return the entry that admits a rank at the port of rank modulo HOSTS."""
    match = {"standard_metadata.ingress_port": rank % HOSTS + 1, "hdr.kofn.job": 1, "hdr.kofn.worker": rank}
    action = fy.P4TableAction("ingress.admission.admit_host")
    return fy.P4TableEntry("ingress.admission.members", match=fy.P4TableMatch(match), action=action)


@pytest.fixture(scope="module", params=TARGETS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataPlane]:
    if os.geteuid() != 0:
        pytest.skip("packet sockets and namespaces need root")
    folder = tmp_path_factory.mktemp("switch")
    with lab(HOSTS) as network, running(request.param, folder, network.interfaces) as switch:
        yield DataPlane(switch, network)


@pytest.fixture
def plane(started: DataPlane) -> Iterator[DataPlane]:
    yield started
    started.uninstall()
