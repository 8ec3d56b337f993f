"""A real switch with kofn.p4 and one job on it, between raw sockets."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from controller.entries import Layout
from controller.measure import Arrival
from controller.push import Program, SwitchLink
from run.config import Job
from tests.controller.harness import star
from tests.controller.switches import TARGETS, SwitchProcess, running
from tests.dataplane.lab import Lab, lab

HOSTS = 4


@dataclass
class DataPlane:
    """The switch under test: `install` gives it a job and empty slots."""

    switch: SwitchProcess
    lab: Lab
    arrivals: list[Arrival] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    def install(self, k: int, *, workers: int = HOSTS, slots: int = 4096, job: int = 1) -> None:
        """A fresh pipeline (all slots empty) and the entries of one job."""
        layout = Layout(job=Job(id=job, workers=workers, slots=slots), hosts=star(HOSTS))
        self._link = SwitchLink(
            address=self.switch.address, device_id=0, program=Program(), layout=layout, k=k,
            on_arrival=self.arrivals.append,
        )  # fmt: skip
        self._with_link(lambda: True)

    def set_k(self, k: int) -> None:
        self._link.k = k
        self._with_link(lambda: True)

    def await_arrivals(self, count: int) -> list[Arrival]:
        self._with_link(lambda: len(self.arrivals) >= count)
        return self.arrivals

    def count(self) -> dict[str, int]:
        """Packets by verdict."""
        self._link.counters.clear()
        self._with_link(lambda: bool(self._link.counters))
        return {name: packets for name, packets in self._link.counters.items() if packets}

    def _with_link(self, done: Callable[[], bool]) -> None:
        async def connect() -> None:
            task = asyncio.create_task(self._link.run())
            async with asyncio.timeout(60):
                while not (self._link.connected and done()):
                    await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(connect())


@pytest.fixture(scope="module", params=TARGETS)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataPlane]:
    if os.geteuid() != 0:
        pytest.skip("packet sockets and namespaces need root")
    with lab(HOSTS) as network:
        with running(request.param, tmp_path_factory.mktemp("switch"), network.interfaces) as switch:
            yield DataPlane(switch, network)


@pytest.fixture
def plane(started: DataPlane) -> DataPlane:
    started.arrivals.clear()
    return started
