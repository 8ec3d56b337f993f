"""The P4Runtime side of a tree against real switches: two racks of two workers, a root and two leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import finsy as fy
import pytest

from kofn_common.config.job import JobSection
from kofn_controller.errors import LayoutError, PushError, StartError
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.p4runtime.entries import Found, fixed_entries, job_entries
from kofn_controller.p4runtime.layout import SlotLayout, lay_out
from kofn_controller.p4runtime.links import make_links
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.program import CompiledProgram, read_all
from kofn_controller.p4runtime.roles import LeafSwitch, roles_of
from kofn_controller.p4runtime.slots import JobSlots, LeafSlots, Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_controller.p4runtime.updates import difference
from tests.controller.harness import tree, until
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS

TREE = tree(racks=2, each=2)
ROOT, LEAVES = 0, (1, 2)
GENERATION = 1_700_000_000


@pytest.fixture(params=TARGETS)
def switches(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[SwitchProcess]]:
    """Yield the root and the leaves, without interfaces."""
    with ExitStack() as stack:
        yield [stack.enter_context(running(request.param, tmp_path, device_id=number)) for number in range(3)]


def a_job(**fields: Any) -> Slots:
    return Slots(layout=SlotLayout(job=JobSection(workers=4, exact_slots=64, **fields), hosts=TREE.hosts), k=4)


@contextlib.asynccontextmanager
async def linked(switches: list[SwitchProcess], *jobs: Slots) -> AsyncIterator[list[SwitchLink]]:
    addresses = [switch.address for switch in switches]
    links = make_links(TREE, jobs, addresses=addresses, device_id=0, plane=KofnPlane())
    tasks = [asyncio.create_task(link.run()) for link in links]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(link.ready.wait() for link in links))
        yield links
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def missing(switch: SwitchProcess, slots: Slots, k: int | None, generation: int = GENERATION) -> list[str]:
    """Return the differences of a switch's entries as a second client sees them; `k` None: no entry of the job."""
    options = fy.SwitchOptions(p4info=CompiledProgram().p4info, device_id=switch.device_id, initial_election_id=1)
    role = roles_of(TREE)[switch.device_id]
    async with fy.Switch("onlooker", switch.address, options) as onlooker:
        present = await read_all(onlooker)
        entries = [] if k is None else job_entries(slots.layout, k, generation, role)
        wanted = [*fixed_entries([slots.layout], role), *entries]
        return [str(update) for update in difference(present, wanted, onlooker.p4info)]


async def all_have(switches: list[SwitchProcess], slots: Slots, k: int | None, generation: int = GENERATION) -> None:
    for switch in switches:
        assert await missing(switch, slots, k, generation) == []


async def restarted(switch: SwitchProcess, link: SwitchLink) -> None:
    switch.kill()
    await until(lambda: not link.connected)
    switch.start()
    async with asyncio.timeout(60):
        while not link.connected:
            await asyncio.sleep(0.01)


@pytest.mark.slow
def test_every_switch_gets_its_entries_and_each_k(switches: list[SwitchProcess]) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switches, job):
            await all_have(switches, job, None)
            await job.admit(GENERATION, 4)
            await all_have(switches, job, 4)
            await job.set_k(3)
            await all_have(switches, job, 3)
            assert job.in_force == 3

    asyncio.run(scenario())


@pytest.mark.slow
def test_restarted_leaf_gets_the_same_generation(switches: list[SwitchProcess]) -> None:
    async def scenario() -> None:
        job, lost = a_job(), list[str]()
        job.on_lost = lost.append
        async with linked(switches, job) as links:
            await job.admit(GENERATION, 4)
            switches[2].kill()
            await until(lambda: not links[2].connected)
            assert job.absent().startswith("leaf-1 does not answer")
            await job.set_k(3)
            assert job.in_force == 3
            await restarted(switches[2], links[2])
            await all_have(switches, job, 3)
            assert lost == []
            assert not job.absent()

    asyncio.run(scenario())


@pytest.mark.slow
def test_restarted_root_admits_nothing_until_the_session_does(switches: list[SwitchProcess]) -> None:
    async def scenario() -> None:
        job, lost = a_job(), list[str]()
        job.on_lost = lost.append
        async with linked(switches, job) as links:
            await job.admit(GENERATION, 4)
            await restarted(switches[ROOT], links[ROOT])
            assert lost == [f"the root has no entry of job 1, not generation {GENERATION}"]
            assert await missing(switches[ROOT], job, None) == []
            assert await missing(switches[1], job, 4) == []
            await restarted(switches[2], links[2])  # while no generation is admitted, nothing is written
            assert await missing(switches[2], job, None) == []
            await job.admit(GENERATION + 7, 3)
            await all_have(switches, job, 3, GENERATION + 7)

    asyncio.run(scenario())


@pytest.mark.slow
def test_restarted_controller_continues_though_a_leaf_has_lost_its_entries(switches: list[SwitchProcess]) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switches, job):
            await job.admit(GENERATION, 3)
        switches[1].kill()
        switches[1].start()
        later, found = a_job(), list[Any]()
        later.on_found = found.append
        async with linked(switches, later):
            assert found == [Found(job=1, k=3, generation=GENERATION)]
            assert await missing(switches[1], later, None) == []
            later.adopt()
            await later.set_k(later.k)
            await all_have(switches, later, 3)

    asyncio.run(scenario())


def test_refusal_of_one_switch_does_not_keep_the_others_from_a_generation() -> None:
    job, written = a_job(), list[int]()

    async def refuse(slots: JobSlots) -> None:
        raise PushError("no")

    async def write(slots: JobSlots) -> None:
        written.append(slots.wanted.generation)

    job.write, job.leaves = refuse, [LeafSlots(root=job, rack=rack, write=write) for rack in range(2)]
    with pytest.raises(PushError, match="no"):
        asyncio.run(job.admit(GENERATION, 4))
    assert written == [GENERATION, GENERATION]


def test_arrival_at_a_leaf_is_that_of_the_job_s_worker() -> None:
    job, arrivals = a_job(), list[Arrival]()
    job.on_arrival = arrivals.append
    arrival = Arrival(worker=1, iteration=7, verdict="ADDED", timestamp_us=5)
    LeafSlots(root=job, rack=1).arrived(arrival)
    assert arrivals == [replace(arrival, worker=3, rack=1)]


def test_racks_follow_each_other_in_each_job() -> None:
    first, second = lay_out([JobSection(id=1, workers=2), JobSection(id=2, workers=4)], tree(2, 3).hosts)
    assert [host.name for host in first.members] == ["h1", "h4"]
    assert [host.name for host in second.members] == ["h2", "h3", "h5", "h6"]
    assert second.places == [0, 1, 256, 257]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (JobSection(workers=3), "job.workers must be a multiple of the racks (2), got 3"),
        (JobSection(workers=6), "job.workers must be at most 4, got 6: the topology has 4 hosts"),
        (
            JobSection(workers=4, slots=4096),
            "job.slots must be at most 2048, got 4096: the switch has 2048, 0 of them are earlier jobs'",
        ),
    ],
)
def test_jobs_that_do_not_fit_a_tree_are_named(job: JobSection, words: str) -> None:
    with pytest.raises(LayoutError) as error:
        lay_out([job], TREE.hosts)
    assert str(error.value) == words


@pytest.mark.parametrize(("racks", "k", "shift"), [(2, 4, 0), (2, 3, 2), (3, 1, 3), (4, 1, 3), (16, 1, 5)])
def test_leaf_waits_for_its_rack_only_if_all_workers_count(racks: int, k: int, shift: int) -> None:
    layout = SlotLayout(job=JobSection(workers=2 * racks), hosts=tree(racks, 2).hosts)
    action = LeafSwitch(rack=1, uplink=3).job(layout, k=k, base=0, group=1, mask=1, generation=1)
    assert (action.args["shift"], action.args["everyone"]) == (shift, 3)


def test_each_switch_needs_its_address() -> None:
    with pytest.raises(StartError, match="--p4runtime must be given 3 times, once for each switch"):
        make_links(TREE, [a_job()], addresses=["127.0.0.1:1"], device_id=0, plane=KofnPlane())
