"""The P4Runtime side against real switches."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import finsy as fy
import pytest

from kofn_common.config.job import JobSection
from kofn_controller.errors import EntryError, LayoutError, PushError
from kofn_controller.p4runtime import switch_link
from kofn_controller.p4runtime.builders import SwitchEntry, exact
from kofn_controller.p4runtime.entries import COUNTER, JOBS, RECIPIENTS, Found, find_jobs, fixed_entries, job_entries
from kofn_controller.p4runtime.layout import SlotLayout, lay_out
from kofn_controller.p4runtime.planes.kofn import KofnPlane
from kofn_controller.p4runtime.program import CompiledProgram, ensure, push, read_all
from kofn_controller.p4runtime.slots import Slots
from kofn_controller.p4runtime.switch_link import SwitchLink
from kofn_controller.p4runtime.updates import difference
from tests.controller.harness import star, until
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS
from tests.waiting import PATIENCE_S

VERDICTS_SEEN = {"OPENED", "ADDED", "CLOSED", "LATE", "STALE", "FORMAT_MISMATCH", "DUPLICATE", "WRONG_PORT"}


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    with running(request.param, tmp_path) as process:
        yield process


@pytest.fixture(scope="module", params=TARGETS)
def same_switch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SwitchProcess]:
    """Yield a switch for tests in which it does nothing but refuse."""
    with running(request.param, tmp_path_factory.mktemp("switch")) as process:
        yield process


GENERATION = 1_700_000_000


def a_job(workers: int = 4, k: int = 4, **fields: Any) -> Slots:
    job = JobSection(workers=workers, **fields)
    return Slots(layout=SlotLayout(job=job, hosts=star(workers)), k=k)


@contextlib.asynccontextmanager
async def linked(switch: SwitchProcess, *jobs: Slots) -> AsyncIterator[SwitchLink]:
    link = SwitchLink(address=switch.address, device_id=0, plane=KofnPlane(), jobs=jobs)
    task = asyncio.create_task(link.run())
    try:
        async with asyncio.timeout(60):
            await link.ready.wait()
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def missing(switch: SwitchProcess, slots: Slots, k: int | None, generation: int = GENERATION) -> list[str]:
    """Return the differences of the switch's entries as a second client sees them; `k` None: no entry of the job."""
    options = fy.SwitchOptions(p4info=CompiledProgram().p4info, device_id=0, initial_election_id=1)
    async with fy.Switch("onlooker", switch.address, options) as onlooker:
        present = await read_all(onlooker)
        entries = [] if k is None else job_entries(slots.layout, k, generation)
        wanted = [*fixed_entries([slots.layout]), *entries]
        return [str(update) for update in difference(present, wanted, onlooker.p4info)]


@pytest.mark.slow
def test_everything_is_installed_and_k_is_one_modify(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switch, job) as link:
            assert link.connected
            await job.write(job)  # no generation is admitted (or it was lost while the write waited)
            assert await missing(switch, job, None) == []
            await job.admit(GENERATION, 4)
            assert await missing(switch, job, 4) == []
            await job.set_k(2)
            assert await missing(switch, job, 2) == []
            await until(lambda: link.counters)
            assert link.counters.keys() >= VERDICTS_SEEN
            assert set(link.counters.values()) == {0}

    asyncio.run(scenario())


@pytest.mark.slow
def test_admission_waits_for_the_switch(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        switch.kill()
        job = a_job()
        link = SwitchLink(address=switch.address, device_id=0, plane=KofnPlane(), jobs=[job])
        task = asyncio.create_task(link.run())
        await job.admit(GENERATION, 4)
        await job.set_k(3)
        switch.start()
        async with asyncio.timeout(60):
            await link.ready.wait()
        assert await missing(switch, job, 3) == []
        task.cancel()

    asyncio.run(scenario())


@pytest.mark.slow
def test_restarted_switch_admits_nothing_until_the_session_does(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        lost: list[str] = []
        job = a_job()
        job.on_lost = lost.append
        async with linked(switch, job) as link:
            await job.admit(GENERATION, 4)
            switch.kill()
            await until(lambda: not link.connected)
            await job.set_k(3)  # no error: it takes effect with the next generation
            assert job.away().startswith("the switch does not answer")
            switch.start()
            async with asyncio.timeout(60):
                while not lost:
                    await asyncio.sleep(0.01)
            assert lost == [f"the switch has no entry of job 1, not generation {GENERATION}"]
            assert await missing(switch, job, None) == []
            await job.admit(GENERATION + 7, 3)
            assert await missing(switch, job, 3, GENERATION + 7) == []

    asyncio.run(scenario())


async def receivers(switch: SwitchProcess, slots: Slots) -> set[int]:
    """Return the ports that get the job's results, as a second client sees them."""
    options = fy.SwitchOptions(p4info=CompiledProgram().p4info, device_id=0, initial_election_id=1)
    async with fy.Switch("onlooker", switch.address, options) as onlooker:
        groups = [entity for entity in await read_all(onlooker) if isinstance(entity, fy.P4MulticastGroupEntry)]
    (ports,) = [group.replicas_str() for group in groups if group.multicast_group_id == slots.layout.job.id]
    return {int(port.partition("#")[0]) for port in ports.split()}


@pytest.mark.slow
def test_worker_that_follows_a_peer_gets_no_results_from_the_switch(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        job = a_job()
        ports = [host.port for host in job.layout.members]
        async with linked(switch, job) as link:
            await job.admit(GENERATION, 3)
            assert await receivers(switch, job) == set(ports)
            job.followers = frozenset({1, 3})
            await job.set_k(3)
            assert await receivers(switch, job) == {ports[0], ports[2]}
            switch.kill()
            await until(lambda: not link.connected)
            switch.start()
            await until(lambda: link.connected)
            assert await receivers(switch, job) == {ports[0], ports[2]}, "also after a restart of the switch"
            job.followers = frozenset()
            await job.admit(GENERATION + 1, 3)
            assert await receivers(switch, job) == set(ports)

    asyncio.run(scenario())


@pytest.mark.slow
def test_counters_are_read_while_the_client_closes(switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link survives that finsy has closed its client and has not said so yet."""
    monkeypatch.setattr(switch_link, "COUNTERS_EVERY_S", 0.01)
    close = fy.P4Client.close

    async def scenario() -> None:
        job = a_job()
        async with linked(switch, job) as link:

            async def close_slowly(client: fy.P4Client) -> None:
                await close(client)
                await link.recount()
                await asyncio.sleep(0.05)

            monkeypatch.setattr(fy.P4Client, "close", close_slowly)
            switch.kill()
            await until(lambda: not link.connected)
            switch.start()
            await until(lambda: link.connected)

    asyncio.run(scenario())


@pytest.mark.slow
def test_restarted_controller_finds_the_entries_and_pushes_nothing(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switch, job):
            await job.admit(GENERATION, 3)
        later, found = a_job(), list[Any]()
        later.on_found = found.append
        async with linked(switch, later):
            assert found == [Found(job=1, k=3, generation=GENERATION)]
            assert await missing(switch, later, 3) == []
            later.adopt()
            await later.set_k(2)
            assert await missing(switch, later, 2) == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_another_jobs_controller_takes_over_the_entries(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switch, job):
            await job.admit(GENERATION, 4)
        other = a_job(workers=2, k=1, id=7)
        async with linked(switch, other):
            assert other.latest == GENERATION
            assert await missing(switch, other, None) == []
            await other.admit(GENERATION + 1, 1)
            assert await missing(switch, other, 1, GENERATION + 1) == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_another_program_is_replaced_once(switch: SwitchProcess, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(CompiledProgram().blob.read_text() + " ")  # only the cookie differs

    async def scenario() -> None:
        job = a_job()
        link = SwitchLink(address=switch.address, device_id=0, plane=KofnPlane(CompiledProgram(blob=other)), jobs=[job])
        task = asyncio.create_task(link.run())
        async with asyncio.timeout(60):
            await link.ready.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await ensure(CompiledProgram(), switch.address, 0)
        assert not await ensure(CompiledProgram(), switch.address, 0)
        async with linked(switch, job):
            await job.admit(GENERATION, 4)
            assert await missing(switch, job, 4) == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_another_client_may_be_primary_for_a_while(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switch, job) as link:
            await job.admit(GENERATION, 4)
            options = fy.SwitchOptions(p4info=link.plane.compiled.p4info, device_id=0, initial_election_id=1000)
            async with fy.Switch("person", switch.address, options) as person:
                await person.modify(job_entries(job.layout, 1, GENERATION))
                assert link._switch is not None
                await until(lambda: not link._switch.is_primary)
                await job.set_k(2)  # no error: it takes effect when the other client leaves
                assert len(await missing(switch, job, 1)) == 0
            await until(lambda: link._switch.is_primary)
            async with asyncio.timeout(PATIENCE_S):
                while await missing(switch, job, 2):
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())


@pytest.mark.slow
def test_connection_waits_for_another_one_to_end(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(fy.P4ClientError):
                    await push(CompiledProgram(), switch.address, 0)
                    break
        before = fy.Switch("before", switch.address, fy.SwitchOptions(device_id=0))
        async with before:
            pushing = asyncio.create_task(push(CompiledProgram(), switch.address, 0))
            await asyncio.sleep(0.3)
            assert not pushing.done()
        await pushing
        async with before:
            with pytest.raises(PushError, match="another controller with election id 10 is primary"):
                await push(CompiledProgram(), switch.address, 0)

    asyncio.run(scenario())


@pytest.mark.slow
def test_refused_updates_are_named_as_in_p4(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        job = a_job()
        async with linked(switch, job):
            await job.admit(GENERATION, 4)
            job.layout = SlotLayout(job=JobSection(id=9, workers=4), hosts=star(4))  # its entry was never inserted
            with pytest.raises(PushError) as error:
                await job.set_k(2)
            for words in ("MODIFY", "jobs", "job=0x9", "set_job(k=0x2", "NOT_FOUND"):
                assert words in str(error.value)

    asyncio.run(scenario())


ACCEPT = "ingress.admission.accept_recipient"
ONE = {"hdr.kofn.job": 1, "hdr.kofn.recipient": 0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (lambda: exact("ingress.members", ONE, ACCEPT), "no P4Table named 'ingress.members'"),
        (lambda: exact(RECIPIENTS, ONE, "ingress.accept"), "no table action named 'ingress.accept'"),
        (lambda: exact(RECIPIENTS, {"hdr.kofn.j": 1}, ACCEPT), "no match field named 'hdr.kofn.j'"),
        (lambda: exact(RECIPIENTS, ONE | {"hdr.kofn.job": 256}, ACCEPT), "invalid value for bitwidth 8: 256"),
        (lambda: exact(JOBS, {"hdr.kofn.job": 1}, "ingress.admission.set_job", k=1), "missing parameters"),
        (lambda: exact(RECIPIENTS, {"hdr.kofn.job": 1}, ACCEPT), "INSERT recipients job=0x1.* INVALID_ARGUMENT"),
        (lambda: ONE["job"], "WrongPlane.entries failed: KeyError: 'job'"),
    ],
)
def test_wrong_entry_ends_the_link_at_once(same_switch: SwitchProcess, entry: Any, words: str) -> None:
    class WrongPlane(KofnPlane):
        def entries(self, *_: Any, **__: Any) -> Iterator[SwitchEntry]:
            yield entry()

    assert_refused(same_switch, WrongPlane(), words)


@pytest.mark.slow
def test_wrong_counter_ends_the_link_at_once(same_switch: SwitchProcess) -> None:
    class WrongPlane(KofnPlane):
        counters: ClassVar[Mapping[str, list[str]]] = {COUNTER: [], "ingress.verdict": []}

    assert_refused(
        same_switch, WrongPlane(), "counters of WrongPlane do not fit .*no P4Counter named 'ingress.verdict'"
    )


def assert_refused(switch: SwitchProcess, plane: KofnPlane, words: str) -> None:
    async def scenario() -> None:
        link = SwitchLink(address=switch.address, device_id=0, plane=plane, jobs=[a_job()])
        async with asyncio.timeout(PATIENCE_S):
            await link.run()

    with pytest.raises(EntryError, match=words):
        asyncio.run(scenario())


@pytest.mark.slow
def test_jobs_have_their_own_hosts_slots_and_groups(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        layouts = lay_out(
            [JobSection(id=3, workers=2, slots=256, exact_slots=64), JobSection(id=5, workers=3, slots=1024)], star(6)
        )
        jobs = [Slots(layout=layout, k=2) for layout in layouts]
        async with linked(switch, *jobs):
            for job in jobs:
                await job.admit(GENERATION, 2)
                await job.set_k(1)
            options = fy.SwitchOptions(p4info=CompiledProgram().p4info, device_id=0, initial_election_id=1)
            async with fy.Switch("onlooker", switch.address, options) as onlooker:
                present = await read_all(onlooker)
                wanted = [
                    *fixed_entries(layouts),
                    *(entry for job in jobs for entry in job_entries(job.layout, *job.wanted)),
                ]
                assert difference(present, wanted, onlooker.p4info) == []
                found = find_jobs(present, onlooker.p4info)
                assert {number: (one.k, one.generation) for number, one in found.items()} == {
                    3: (1, GENERATION), 3 + 128: (2, GENERATION), 5: (1, GENERATION)
                }  # fmt: skip

    asyncio.run(scenario())


def test_absent_switch_is_named() -> None:
    async def scenario() -> None:
        link = SwitchLink(address="127.0.0.1:1", device_id=0, plane=KofnPlane(), jobs=[a_job()])
        task = asyncio.create_task(link.run())
        await until(lambda: link.fault)
        assert not link.connected
        assert "UNAVAILABLE" in link.fault
        assert "\n" not in link.fault
        task.cancel()

    asyncio.run(scenario())


def entries(layout: SlotLayout, k: int) -> list[object]:
    return [*fixed_entries([layout]), *job_entries(layout, k, GENERATION)]


def test_difference_is_every_missing_changed_or_superfluous_entry() -> None:
    schema = fy.P4Schema(CompiledProgram().p4info)
    layout = SlotLayout(job=JobSection(workers=2), hosts=star(2))
    assert difference(entries(layout, 2), entries(layout, 2), schema) == []
    (update,) = difference(entries(layout, 2), entries(layout, 1), schema)
    assert update.type == update.MODIFY
    other = SlotLayout(job=JobSection(id=5, workers=2), hosts=star(2))
    (update,) = difference([*entries(layout, 2), *job_entries(other, 1, 1)], entries(layout, 2), schema)
    assert update.type == update.DELETE
    fewer = SlotLayout(job=JobSection(workers=1), hosts=star(2))
    updates = difference(entries(layout, 2), entries(fewer, 2), schema)
    kinds = [update.Type.Name(update.type) for update in updates]
    assert kinds == ["DELETE"] * 3 + ["MODIFY"] * 2  # members, owners and hosts of the second; the job's group and room


def test_layouts_follow_each_other() -> None:
    first, second = lay_out([JobSection(id=1, workers=2, slots=256), JobSection(id=2, workers=3, slots=1024)], star(5))
    assert [host.name for host in first.members] == ["h1", "h2"]
    assert [host.name for host in second.members] == ["h3", "h4", "h5"]
    assert (first.base, second.base) == (0, 1024)


def test_slots_of_exact_sums_follow_a_jobs_own() -> None:
    jobs = [JobSection(id=number, workers=2, slots=256, exact_slots=256 * number) for number in (1, 2)]
    assert [(layout.base, layout.end) for layout in lay_out(jobs, star(4))] == [(0, 512), (512, 1280)]


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (
            [JobSection(id=1, workers=2), JobSection(id=1, workers=2)],
            "each job must have its own job.id, got 1 in two configurations",
        ),
        (
            [JobSection(id=1, workers=2, slots=4096), JobSection(id=2, workers=2, slots=256)],
            "job.slots must be at most 0, got 256: the switch has 4096, 4096 of them are earlier jobs'",
        ),
        (
            [JobSection(id=1, workers=2, slots=4096, exact_slots=64)],
            "job.slots and job.exact_slots together must be at most 4096, got 4160: the switch has 4096, 0 of them are"
            " earlier jobs'",
        ),
        (
            [JobSection(id=128, workers=2)],
            "job.id must be 1 to 127 (higher ids are those of exact sums), got 128",
        ),
        (
            [JobSection(id=1, workers=3), JobSection(id=2, workers=2)],
            "job.workers must be at most 1, got 2: the topology has 4 hosts, 3 of them are earlier jobs'",
        ),
    ],
)
def test_jobs_that_do_not_fit_are_named(jobs: list[JobSection], words: str) -> None:
    with pytest.raises(LayoutError) as error:
        lay_out(jobs, star(4))
    assert str(error.value) == words
