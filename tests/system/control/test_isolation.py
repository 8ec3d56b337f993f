"""Packets of two jobs on one switch: a job reaches only its own slots, workers and generation, whatever packets
contain.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.l2 import ARP, Ether

from kofn_common.config.job import JobSection
from kofn_common.wire.packet import Kind
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.p4runtime.layout import lay_out
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.program import CompiledProgram
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from tests.controller.harness import star
from tests.dataplane.frames import contribution, frame, host_mac, parse
from tests.dataplane.lab import Lab, lab
from tests.system.control.switches import running
from tests.targets import TARGETS
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.root

GENERATION = 1_700_000_000
JOBS = [JobSection(id=1, workers=2, slots=256), JobSection(id=2, workers=2, slots=256)]
VALUES = np.arange(64)


@pytest.fixture(params=TARGETS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Lab, str]]:
    if os.geteuid() != 0:
        pytest.skip("packet sockets and namespaces need root")
    with lab(4) as network, running(request.param, tmp_path, network.interfaces) as switch:
        yield network, switch.address


def sent(
    worker: int, job: int, *, port: int | None = None, generation: int | None = None, **fields: int
) -> tuple[int, bytes]:
    """Return a job's contribution to block 0 of its iteration 1, from its worker's port or another one."""
    fields = {"job": job, "generation": generation or GENERATION + job, **fields}
    own = 2 * (job - 1) + worker + 1
    _, made = contribution(worker, 1, 0, VALUES * job + worker, **fields)
    header = parse(made)
    return port or own, frame(port or own, header.header, header.values.astype(">i4").tobytes())


def test_jobs_do_not_touch_each_other(place: tuple[Lab, str]) -> None:
    network, address = place
    arrivals: dict[int, list[Arrival]] = {1: [], 2: []}

    async def scenario() -> None:
        jobs = [
            Slots(layout=layout, k=2, on_arrival=arrivals[layout.job.id].append) for layout in lay_out(JOBS, star(4))
        ]
        link = SwitchLink(address=address, device_id=0, plane=KofnPlane(), jobs=jobs)
        task = asyncio.create_task(link.run())
        for job in jobs:
            await job.admit(GENERATION + job.job, 2)
        async with asyncio.timeout(60):
            await link.ready.wait()
        await asyncio.to_thread(exchange_packets)
        async with asyncio.timeout(PATIENCE_S):
            while len(arrivals[1]) < 2 or len(arrivals[2]) < 2:
                await asyncio.sleep(0.01)
        counted = {name: count for name, count in (await link.count()).items() if count}
        assert counted == {"OPENED": 2, "CLOSED": 2, "WRONG_PORT": 2, "OLD_GENERATION": 1, "LATE": 1}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def exchange_packets() -> None:
        assert network.exchange(*sent(0, 1)) == {}
        assert network.exchange(*sent(0, 2, slot=0xFFFFFF00)) == {}, "slot numbers wrap inside the job's own slots"
        assert network.exchange(*sent(1, 2, port=2)) == {}, "a worker of job 1 cannot send for job 2"
        assert network.exchange(*sent(1, 1, port=4)) == {}
        assert network.exchange(*sent(1, 2, generation=GENERATION + 1)) == {}, (
            "job 1's generation is not valid for job 2"
        )
        for job, ports in ((1, {1, 2}), (2, {3, 4})):
            answers = network.exchange(*sent(1, job))
            assert answers.keys() == ports
            for frames in answers.values():
                (answer,) = map(parse, frames)
                assert (answer.kind, answer.header.job, answer.header.members) == (Kind.RESULT, job, 0b11)
                assert np.array_equal(answer.values, 2 * VALUES * job + 1)
        assert network.exchange(*sent(1, 1)).keys() == {2}, "the late worker gets the sum of its own job"

    asyncio.run(scenario())
    for job in (1, 2):
        assert [(arrival.worker, arrival.iteration) for arrival in arrivals[job][:2]] == [(0, 1), (1, 1)]


async def install(address: str, program: CompiledProgram) -> None:
    link = SwitchLink(
        address=address, device_id=0, plane=KofnPlane(program), jobs=[Slots(layout=lay_out(JOBS, star(4))[0], k=2)]
    )
    task = asyncio.create_task(link.run())
    async with asyncio.timeout(60):
        await link.ready.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_replaced_program_leaves_no_copies_of_groups(place: tuple[Lab, str], tmp_path: Path) -> None:
    """BMv2 keeps multicast groups through a push, but its P4Runtime forgets them: every packet would be sent twice."""
    network, address = place
    other = tmp_path / "other.json"
    other.write_text(CompiledProgram().blob.read_text() + " ")  # only the cookie differs
    for program in (CompiledProgram(blob=other), CompiledProgram()):
        asyncio.run(install(address, program))
    query = bytes(Ether(dst="ff:ff:ff:ff:ff:ff", src=host_mac(1)) / ARP(pdst="10.0.0.3") / (b"\0" * 18))
    assert network.exchange(1, query) == {port: [query] for port in (2, 3, 4)}
