"""Several jobs of one controller and one switch do not affect each other."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kofn_common.config.job import JobSection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.job.journal import Journal
from kofn_controller.job.session import JobSession
from kofn_controller.p4runtime.layout import lay_out
from tests.controller.harness import agreed, serving, setup, star, until
from tests.system.control.switches import SwitchProcess, running
from tests.system.control.test_regroup import entry
from tests.targets import TARGETS
from tests.waiting import PATIENCE_S


@pytest.fixture(params=TARGETS)
def switch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SwitchProcess]:
    with running(request.param, tmp_path) as process:
        yield process


def two_jobs(journal: Journal | None = None) -> list[JobSession]:
    jobs = [JobSection(id=4, workers=2, slots=256), JobSection(id=9, workers=3, slots=512)]
    sessions = [setup(job, journal=journal) for job in jobs]
    for session, layout in zip(sessions, lay_out(jobs, star(5)), strict=True):
        session.slots.layout = layout
    return sessions


@pytest.mark.slow
def test_each_job_runs_separately(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(*two_jobs(), switch=switch.address) as control:
            first = await control.start_all(job=4)
            assert await entry(switch, 9) is None
            second = await control.start_all(job=9)
            second[1].call.cancel()
            assert (await second[0].expect("decision")).k == 2
            async with asyncio.timeout(PATIENCE_S):
                while (await entry(switch, 9) or (0, 0))[0] != 2:
                    await asyncio.sleep(0.02)
            assert (await entry(switch, 4) or (0, 0))[0] == 2
            for worker in first:
                await worker.finish("target")
            assert (await first[0].expect("stop")).reason == "target"
            assert not control.jobs.sessions[9].stopped
            status = await control.status(9)
            assert (status.job, status.live, list(status.jobs)) == (9, 2, [4, 9])
            assert (await control.status()).job == 4

    asyncio.run(scenario())


@pytest.mark.slow
def test_restarted_switch_regroups_each_job_separately(switch: SwitchProcess) -> None:
    async def scenario() -> None:
        async with serving(*two_jobs(), switch=switch.address) as control:
            workers = {job: await control.start_all(job=job) for job in (4, 9)}
            switch.kill()
            switch.start()
            generations = {job: await agreed("regroup", workers[job]) for job in (4, 9)}
            for worker in workers[9]:
                await worker.regrouped(generations[9])
            assert await agreed("resume", workers[9]) == generations[9]
            assert await entry(switch, 9) == (3, generations[9])
            assert await entry(switch, 4) is None, "job 4 has no entry before its worker has answered"
            for worker in workers[4]:
                await worker.regrouped(generations[4])
            assert await agreed("resume", workers[4]) == generations[4]

    asyncio.run(scenario())


def test_requests_and_arrivals_reach_their_job() -> None:
    async def scenario() -> None:
        async with serving(*two_jobs()) as control:
            await control.start_all(job=4)
            await control.start_all(job=9)
            answer = await control.inspector.SetObjective(pb.Objective(job=9, objective="fixed:1"))
            assert (answer.job, answer.k) == (9, 1)
            assert control.jobs.sessions[4].control_loop.k == 2
            control.jobs.sessions[9].slots.on_arrival(Arrival(worker=0, iteration=1, verdict="ADDED", timestamp_us=1))
            assert [s.control_loop.measurements.track(0).arrivals for s in control.jobs.all] == [0, 1]
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await control.status(5)
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
            assert error.value.details() == "job 5: this controller runs jobs 4, 9"
            stranger = control.worker(0, job=5)
            await stranger.hello()
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stranger.next()
            assert error.value.details() == "job 5: this controller runs jobs 4, 9"

    asyncio.run(scenario())


def test_decisions_name_their_job(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    async def scenario() -> None:
        with Journal(path) as journal:
            async with serving(*two_jobs(journal)) as control:
                for job in (4, 9):
                    await control.start_all(job=job)
                    await control.inspector.SetObjective(pb.Objective(job=job, objective="fixed:1"))
                await until(lambda: path.read_text().count('"reason"') >= 2)

    asyncio.run(scenario())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["job"] for line in lines if "reason" in line][:2] == [4, 9]
    assert [line["job"] for line in lines if "planned" in line] == [4, 9]
