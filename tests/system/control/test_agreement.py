"""The iteration from which a k holds: it is agreed on and announced to the workers, and either side may fail."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kofn_common.config.job import JobSection
from kofn_controller.errors import PushError
from kofn_controller.job.agreement import Agreement, AnnouncedK
from kofn_controller.p4runtime.slots import JobSlots
from tests.controller.harness import Running, Worker, agreed, controller, serving, setup, until
from tests.system.control.switches import SwitchProcess, running
from tests.targets import TARGETS

ALL = {0: 0, 1: 0}


def said(iteration: int, decision: int, least: int = 2, most: int = 2) -> AnnouncedK:
    return AnnouncedK(iteration=iteration, decision=decision, least=least, most=most)


def test_certain_is_the_first_iteration_that_no_worker_began_before_it_was_told() -> None:
    agreement = Agreement()
    number = agreement.confirmed(2)
    assert not agreement.report(0, said(7, 0, least=1, most=2), ALL, settled=True)
    assert not agreement.report(0, said(8, number), ALL, settled=True)
    assert not agreement.report(1, said(9, 0, least=1, most=1), ALL, settled=True)
    assert (agreement.first, agreement.certain) == (7, 0)
    assert agreement.report(1, said(10, number), ALL, settled=True)
    assert agreement.certain == 10


def test_lost_worker_is_not_awaited_but_its_iteration_counts() -> None:
    agreement = Agreement()
    number = agreement.confirmed(2)
    assert agreement.report(0, said(8, number), {0: 0, 1: 11}, settled=True)
    assert agreement.certain == 12


def test_another_change_restarts_the_agreement() -> None:
    agreement = Agreement()
    old = agreement.confirmed(2)
    agreement.report(0, said(8, old), ALL, settled=True)
    number = agreement.confirmed(1)
    assert not agreement.report(1, said(9, old), ALL, settled=True)
    assert not agreement.report(1, said(10, number, 1, 1), ALL, settled=True)
    assert agreement.report(0, said(10, number, 1, 1), ALL, settled=True)
    assert (agreement.k, agreement.certain) == (1, 10)


def test_torn_iteration_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    agreement = Agreement()
    number = agreement.confirmed(2)
    for rank in ALL:
        agreement.report(rank, said(8, number), ALL, settled=True)
    agreement.report(0, said(7, number, 1, 2), ALL, settled=True)
    agreement.report(0, said(9, number, 1, 1), ALL, settled=False)  # the next k may be in force already
    agreement.report(0, said(9, number, 0, 0), ALL, settled=True)
    assert agreement.torn == 0
    with caplog.at_level(logging.ERROR):
        for iteration in (9, 10):
            agreement.report(0, said(iteration, number, 1, 2), ALL, settled=True)
    assert (agreement.torn, len(caplog.messages)) == (2, 1)
    assert "blocks of iteration 9 closed under k = 1 to 2, but k = 2 was in force from 8 on" in caplog.text


def test_workers_are_told_of_a_k_once_the_switch_has_confirmed_it() -> None:
    async def scenario() -> None:
        async with controller(3, objective="all") as job:
            slots, answered = job.session.slots, asyncio.Event()
            workers = await job.start_all()

            async def write(_: JobSlots) -> None:
                k = slots.k
                await answered.wait()
                slots.confirm(k)

            slots.write = write
            job.session.set_objective("fixed:2")
            await until(lambda: slots.k == 2)
            status = await job.status()
            assert (status.k, status.switch_k, status.switch_differs) == (2, 3, "the switch has not answered yet")
            assert workers[0].call.cancelled() is False and job.session.agreement.k == 3
            answered.set()
            decisions = [await worker.expect("decision") for worker in workers]
            assert [(told.k, told.number) for told in decisions] == [(2, 2)] * 3
            for worker, iteration in zip(workers, (4, 6, 5), strict=True):
                await worker.report(iteration, 0.01, decision=2, k_least=2, k_most=2)
            await until(lambda: job.session.agreement.certain)
            status = await job.status()
            assert (status.switch_k, status.switch_differs, status.k_certain, status.k_torn) == (2, "", 6, 0)

    asyncio.run(scenario())


def test_refused_change_keeps_the_old_k_gives_the_reason_and_is_retried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kofn_controller.job.session.AGAIN_S", 0.01)

    async def scenario() -> None:
        async with controller(3, objective="all") as job:
            slots, tries = job.session.slots, []
            workers = await job.start_all()

            async def write(_: JobSlots) -> None:
                tries.append(slots.k)
                if len(tries) < 4:
                    raise PushError("MODIFY jobs: INVALID_ARGUMENT")
                slots.confirm(slots.k)

            slots.write = write
            job.session.set_objective("fixed:2")
            await until(lambda: tries)
            status = await job.status()
            assert (status.k, status.switch_k) == (2, 3)
            assert status.switch_differs == "MODIFY jobs: INVALID_ARGUMENT"
            assert (await workers[0].expect("decision")).k == 2
            assert (tries, (await job.status()).switch_differs) == ([2] * 4, "")

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    said_by_us = [record.message for record in caplog.records if record.name == "kofn_controller.job.session"]
    assert said_by_us == ["job 1: k = 2 was not pushed, k = 3 stays: MODIFY jobs: INVALID_ARGUMENT"]


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    with running(request.param, tmp_path) as process:
        yield process


async def _trained(job: Running, workers: list[Worker], iteration: int, decision: int, k: int) -> None:
    """Report an iteration of every worker."""
    for worker in workers:
        await worker.report(iteration, 0.01, decision=decision, k_least=k, k_most=k)
    await until(lambda: job.session.control_loop.iteration == iteration)


@pytest.mark.slow
def test_absent_switch_keeps_the_old_k_until_it_is_back(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(setup(JobSection(workers=2), objective="all"), switch=switch.address) as job:
            workers = await job.start_all()
            status = await job.status()
            assert (status.switch_k, status.switch_differs) == (2, "")
            await _trained(job, workers, 1, 1, 2)
            await until(lambda: job.session.agreement.certain == 1)
            job.session.set_objective("fixed:1")
            assert {(await worker.expect("decision")).number for worker in workers} == {2}
            assert job.session.slots.in_force == 1
            switch.kill()
            await until(job.session.slots.away)
            job.session.set_objective("fixed:2")
            await until(lambda: job.session.slots.k == 2)
            status = await job.status()
            assert (status.k, status.switch_k) == (2, 1)
            assert status.switch_differs.startswith("the switch does not answer")
            switch.start()
            generation = await agreed("regroup", workers)
            for worker in workers:
                await worker.regrouped(generation)
            await agreed("resume", workers)
            await until(lambda: job.session.slots.in_force == 2)
            assert (await job.status()).switch_differs == ""

    asyncio.run(scenario())
