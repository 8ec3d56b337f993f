"""The switch or the controller restarts in the middle of a job: real switches, real gRPC."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import finsy as fy
import grpc
import pytest

from kofn_common.config.job import JobSection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.job import explain, recovery, state
from kofn_controller.p4runtime.entries import find_jobs
from kofn_controller.p4runtime.program import CompiledProgram, read_all
from tests.controller.harness import Running, Worker, agreed, serving, setup, until
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    with running(request.param, tmp_path) as process:
        yield process


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[SwitchProcess]:
    with running("embedded", tmp_path) as process:
        yield process


async def entry(switch: SwitchProcess, job: int = 1) -> tuple[int, int] | None:
    """Return (k, generation) of the switch's entry."""
    options = fy.SwitchOptions(p4info=CompiledProgram().p4info, device_id=0, initial_election_id=1)
    async with fy.Switch("onlooker", switch.address, options) as onlooker:
        found = find_jobs(await read_all(onlooker), onlooker.p4info).get(job)
        return None if found is None else (found.k, found.generation)


async def restarted(switch: SwitchProcess) -> None:
    switch.kill()
    await asyncio.sleep(0)
    switch.start()


async def back(control: Running, rank: int, iteration: int, generation: int) -> Worker:
    worker = control.worker(rank)
    await worker.hello(iteration=iteration, generation=generation)
    return worker


def test_start_is_in_the_switch_before_workers_are_told(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=2)), switch=switch.address) as control:
            workers = [control.worker(rank) for rank in range(2)]
            for worker in workers:
                await worker.hello()
            generation = (await workers[0].expect("welcome")).generation
            assert await entry(switch) == (2, generation)

    asyncio.run(scenario())


def test_restarted_switch_resumes_when_all_but_the_lost_have_answered(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=3)), switch=switch.address) as control:
            workers = await control.start_all()
            before = control.session.job_state.generation
            await restarted(switch)
            generation = (await workers[0].expect("regroup")).generation
            assert generation > before
            await workers[0].regrouped(before)  # an answer to something else
            await workers[0].regrouped(generation)
            await workers[1].regrouped(generation)
            await until(lambda: control.session.life.recovery.waiting == {2})
            assert await entry(switch) is None, "no worker may send before all have answered"
            workers[2].call.cancel()
            for worker in workers[:2]:
                if worker is workers[1]:
                    await worker.expect("regroup")
                assert (await worker.expect("resume")).generation == generation
            await until(lambda: control.session.slots.k == 2)
            status = await control.status()
            assert (status.regroups, status.generation, status.live, status.k) == (1, generation, 2, 2)
            late = control.worker(2)
            await late.hello(iteration=4, generation=before)  # it may have results that no other worker has
            assert (await late.expect("welcome")).generation == generation
            await late.ready(9)
            await until(lambda: control.session.slots.k == 3)
            assert await entry(switch) == (3, generation)

    asyncio.run(scenario())


def test_slot_ahead_of_all_workers_leads_to_a_new_generation(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=2)), switch=switch.address) as control:
            workers = await control.start_all()
            before = control.session.job_state.generation
            for generation in (before - 1, before, before):  # a report on an earlier generation, and one of each worker
                await workers[0].say(slot_ahead=pb.SlotAhead(generation=generation, iteration=7, block=3))
            generation = await agreed("regroup", workers)
            assert generation > before
            for worker in workers:
                await worker.regrouped(generation)
            assert await agreed("resume", workers) == generation
            assert await entry(switch) == (2, generation)
            assert control.session.life.recovery.regroups == 1

    asyncio.run(scenario())


def test_switch_may_restart_during_a_regroup_or_after_it(embedded: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=2)), switch=embedded.address) as control:
            workers = await control.start_all()
            await restarted(embedded)
            first = await agreed("regroup", workers)
            await workers[0].regrouped(first)
            embedded.kill()  # the generation was not admitted yet, so it stays
            await until(control.session.slots.away)
            embedded.start()
            await until(lambda: not control.session.slots.away())
            await workers[1].regrouped(first)
            assert await agreed("resume", workers) == first
            assert await entry(embedded) == (2, first)
            await restarted(embedded)
            second = await agreed("regroup", workers)
            assert second > first
            for worker in workers:
                await worker.regrouped(second)
            assert await agreed("resume", workers) == second
            assert await entry(embedded) == (2, second)
            assert control.session.life.recovery.regroups == 2

    asyncio.run(scenario())


def test_workers_may_attach_during_a_regroup(embedded: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=5, start_workers=3)), switch=embedded.address) as control:
            workers = await control.start_all(ranks=(0, 1, 2))
            before = control.session.job_state.generation
            await restarted(embedded)
            generation = (await workers[0].expect("regroup")).generation
            fresh = control.worker(3)
            await fresh.hello()
            stale = await back(control, 4, 3, before - 1)  # it missed an earlier regroup, so its results do not count
            workers[1].call.cancel()
            await until(lambda: control.session.members.seats[1].stream is None)
            again = await back(control, 1, 5, before)  # it never stopped, so it is asked like the others
            assert (await again.expect("welcome")).generation == before
            assert (await again.expect("regroup")).generation == generation
            for worker in (workers[0], workers[2]):
                await worker.regrouped(generation)
            assert [seat.state for seat in control.session.members.seats[3:]] == ["attached"] * 2
            await again.regrouped(generation)
            assert (await again.expect("resume")).generation == generation
            for worker in (fresh, stale):
                welcome = await worker.expect("welcome")
                assert (welcome.running, welcome.generation) == (True, generation)

    asyncio.run(scenario())


def test_worker_that_does_not_answer_is_given_up(embedded: SwitchProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "ANSWER_S", 0.5)
    monkeypatch.setattr(explain, "EXPLAIN_AFTER_S", 0.1)

    async def scenario() -> None:
        async with serving(setup(JobSection(workers=3)), switch=embedded.address) as control:
            workers = await control.start_all()
            await restarted(embedded)
            generation = await agreed("regroup", workers)
            for worker in (workers[0], workers[2]):
                await worker.regrouped(generation)
            await until(lambda: control.session.waiting.text.startswith("regrouping: waiting for worker 1 since"))
            assert await agreed("resume", [workers[0], workers[2]]) == generation
            with pytest.raises(grpc.aio.AioRpcError) as error:
                while True:
                    await workers[1].next()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert error.value.details() == "worker 1 of job 1 has not answered Regroup for 0.5 s"
            assert control.session.control_loop.k == 2

    asyncio.run(scenario())


def test_restarted_controller_continues_with_k_and_generation(
    switch: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "GRACE_S", 0.5)

    async def scenario() -> None:
        async with serving(setup(JobSection(workers=4), objective="fixed:3"), switch=switch.address) as control:
            await control.start_all()
            generation = control.session.job_state.generation
        assert await entry(switch) == (3, generation)
        async with serving(setup(JobSection(workers=4)), switch=switch.address) as control:
            workers = [await back(control, rank, 2000, generation) for rank in (0, 1)]
            for worker in workers:
                welcome = await worker.expect("welcome")
                assert (welcome.running, welcome.k, welcome.generation) == (True, 3, generation)
                assert (await worker.expect("resume")).generation == generation
                await worker.ready(2000)
                await worker.report(2000, 0.01)
            await until(lambda: control.session.control_loop.iteration == 2000)
            assert control.session.control_loop.measurements.refused == 0
            assert await entry(switch) == (3, generation), "the entry in the switch stays"
            await until(lambda: control.session.slots.k == 2)  # two are not back and count as lost
            async with asyncio.timeout(PATIENCE_S):
                while await entry(switch) != (2, generation):
                    await asyncio.sleep(0.02)
            third = await back(control, 3, 2010, generation)
            await third.expect("welcome")
            await third.ready(2010)
            await until(lambda: int(control.session.control_loop.live.sum()) == 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("all_back", [True, False])
def test_switch_and_controller_may_restart_together(
    embedded: SwitchProcess, all_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "GRACE_S", 60.0 if all_back else 0.5)

    async def scenario() -> None:
        async with serving(setup(JobSection(workers=3)), switch=embedded.address) as control:
            await control.start_all()
            generation = control.session.job_state.generation
        await restarted(embedded)
        async with serving(setup(JobSection(workers=3)), switch=embedded.address) as control:
            ranks = (2, 0, 1) if all_back else (2, 0)
            workers = [await back(control, rank, 30 + rank, generation) for rank in ranks]
            for worker in workers:
                assert (await worker.expect("welcome")).generation == generation
            later = await agreed("regroup", workers)
            assert later > generation
            for worker in workers:
                await worker.ready(30)
                await worker.regrouped(later)
            assert await agreed("resume", workers) == later
            assert await entry(embedded) == (len(ranks), later)

    asyncio.run(scenario())


def test_fresh_workers_wait_for_those_that_may_be_training(
    embedded: SwitchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "GRACE_S", 1.0)

    async def scenario() -> None:
        job = JobSection(workers=2, start_workers=1)
        async with serving(setup(job), switch=embedded.address) as control:
            await control.start_all()
            generation = control.session.job_state.generation
        async with serving(setup(job), switch=embedded.address) as control:
            fresh = control.worker(1)
            await fresh.hello()  # it was killed and restarted while the controller was away
            running = await back(control, 0, 8, generation)
            assert (await running.expect("welcome")).running
            assert (await fresh.expect("welcome")).running
        async with serving(setup(job), switch=embedded.address) as control:
            fresh = control.worker(1)
            await fresh.hello()
            welcome = await fresh.expect("welcome")
            assert not welcome.running, "no worker has come back, so a new job starts"
            assert welcome.generation > generation
            assert await entry(embedded) == (1, welcome.generation)

    asyncio.run(scenario())


def test_new_job_may_take_over_old_slots_at_once(embedded: SwitchProcess) -> None:
    async def scenario() -> None:
        generations = []
        for _ in range(2):
            async with serving(setup(JobSection(workers=2)), switch=embedded.address) as control:
                await control.start_all()
                generations.append(control.session.job_state.generation)
        assert generations[1] > generations[0]
        assert await entry(embedded) == (2, generations[1])

    asyncio.run(scenario())
