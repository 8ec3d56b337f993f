"""Membership: late and rejoining workers, two streams of one rank, and the news that all workers get."""

import asyncio
import logging
import time
from typing import Any

import grpc
import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.job import explain, state
from kofn_controller.p4runtime.slots import JobSlots, Slots
from tests.controller.harness import Running, Worker, agreed, controller, until
from tests.controller.job.test_service import refusal


async def until_states(running: Running, *wanted: str) -> None:
    await until(lambda: [seat.state for seat in running.session.members.seats] == list(wanted))


async def attached(running: Running, rank: int, **hello: Any) -> Worker:
    worker = running.worker(rank)
    await worker.hello(**hello)
    return worker


def test_late_joiner_is_live_when_it_is_ready() -> None:
    async def scenario() -> None:
        async with controller(4, start_workers=3, objective="all") as running:
            workers = await running.start_all(ranks=(0, 1, 3))
            await until_states(running, "training", "training", "absent", "training")
            assert running.session.control_loop.k == 3
            late = await attached(running, 2)
            welcome = await late.expect("welcome")
            assert (welcome.running, welcome.k, welcome.generation) == (True, 3, running.session.job_state.generation)
            peers = (await workers[0].expect("peers")).peers
            assert [peer.rank for peer in peers] == [0, 1, 2, 3]
            await until_states(running, "training", "training", "joining", "training")
            assert running.session.control_loop.k == 3
            await late.ready(7)
            for worker in (*workers, late):
                assert (await worker.expect("decision")).k == 4
            status = await running.status()
            assert (status.live, status.k, status.worker[2].state) == (4, 4, "training")
            assert status.changes[-1].reason == "worker 2 has joined: 4 of 4 live"

    asyncio.run(scenario())


def test_killed_worker_rejoins_without_state() -> None:
    async def scenario() -> None:
        async with controller(3) as running:
            workers = await running.start_all()
            workers[1].call.cancel()
            assert (await workers[0].expect("decision")).k == 2
            await until_states(running, "training", "lost", "training")
            assert [peer.rank for peer in (await workers[2].expect("peers")).peers] == [0, 2]
            back = await attached(running, 1)
            assert (await back.expect("welcome")).running
            await back.ready(12)
            assert (await back.expect("decision")).k == 3
            status = await running.status()
            assert status.worker[1].attachments == 2
            assert status.changes[-1].reason == "worker 1 is back: 3 of 3 live"

    asyncio.run(scenario())


def test_worker_whose_connection_broke_continues() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            generation = running.session.job_state.generation
            workers[1].call.cancel()
            await until_states(running, "training", "lost")
            back = await attached(running, 1, iteration=9, generation=generation)
            assert (await back.expect("welcome")).running
            assert (await back.expect("resume")).generation == generation
            await back.ready(9)
            assert (await back.expect("decision")).k == 2

    asyncio.run(scenario())


def test_worker_of_an_older_generation_joins_without_state() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            workers[1].call.cancel()
            await until_states(running, "training", "lost")
            back = await attached(running, 1, iteration=9, generation=running.session.job_state.generation - 1)
            assert (await back.expect("welcome")).generation == running.session.job_state.generation
            await back.ready(9)
            assert (await back.next()).WhichOneof("message") == "decision", (
                "a worker that attaches again gets no Resume"
            )

    asyncio.run(scenario())


def test_newer_of_two_streams_of_one_rank_counts() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            older = running.session.members.seats[1].stream
            assert older is not None
            newer = await attached(running, 1)
            assert (await newer.expect("welcome")).running
            with pytest.raises(grpc.aio.AioRpcError) as error:
                while True:
                    await workers[1].next()
            assert error.value.code() is grpc.StatusCode.ABORTED
            assert error.value.details() == "worker 1 of job 1 has attached again from 10.9.1.1:50053"
            await newer.ready(3)
            await until_states(running, "training", "training")
            running.session.take(older, pb.WorkerMessage(finished=pb.Finished(reason="target")))
            assert running.session.members.seats[1].state == "training"
            assert running.session.control_loop.live.all()

    asyncio.run(scenario())


def test_worker_that_attaches_twice_before_the_start_is_started_once() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            first = await attached(running, 0)
            await until_states(running, "attached", "absent")
            again = await attached(running, 0)
            assert (await refusal(first.call)).code() is grpc.StatusCode.ABORTED
            other = await attached(running, 1)
            for worker in (again, other):
                assert not (await worker.expect("welcome")).running

    asyncio.run(scenario())


def test_all_workers_are_killed_and_rejoin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            before = running.session.job_state.generation
            for worker in workers:
                worker.call.cancel()
            await until_states(running, "lost", "lost")
            assert not running.session.stopped
            workers = await running.start_all()
            assert running.session.job_state.generation > before, (
                "the job must restart, because no worker has parameters"
            )

    asyncio.run(scenario())


def test_joining_worker_starts_fresh_when_no_peer_has_parameters() -> None:
    async def scenario() -> None:
        async with controller(3, start_workers=2) as running:
            workers = await running.start_all(ranks=(0, 1))
            joining = await attached(running, 2)
            assert (await joining.expect("welcome")).running
            for worker in workers:
                worker.call.cancel()
            await until_states(running, "lost", "lost", "joining")
            running.session.job_state.quiet_until_s = 0.0
            workers = await running.start_all(ranks=(0, 1))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                while True:
                    await joining.next()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert error.value.details() == "no worker has parameters of job 1: it restarts"

    asyncio.run(scenario())


def test_all_workers_may_be_away_for_a_moment() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            generation = running.session.job_state.generation
            for worker in workers:
                worker.call.cancel()
            await until_states(running, "lost", "lost")
            for rank in range(2):
                back = await attached(running, rank, iteration=9, generation=generation)
                assert (await back.expect("welcome")).generation == generation
                await back.ready(9)
            await until_states(running, "training", "training")
            assert running.session.control_loop.k == 2

    asyncio.run(scenario())


def test_late_comer_is_told_of_the_end_and_an_old_worker_is_stopped() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            for worker in workers:
                await worker.finish("target")
            for worker in workers:
                assert (await worker.expect("stop")).reason == "target"
            new = await attached(running, 0)
            error = await refusal(new.call)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert error.details() == "job 1 is over: worker 0 cannot join any more"
            old = await attached(running, 1, iteration=50, generation=running.session.job_state.generation)
            assert (await old.expect("welcome")).running
            await old.finish("target")
            assert (await old.expect("stop")).reason == "target"

    asyncio.run(scenario())


@pytest.mark.slow
def test_reason_of_a_wait_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(explain, "EXPLAIN_AFTER_S", 0.2)
    monkeypatch.setattr(state, "GRACE_S", 0.1)
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        async with controller(3, warm_up=3) as running:
            first = await attached(running, 1)
            await until(lambda: running.session.waiting.text)
            running.session.job_state.since_s -= 7.0
            await until(lambda: running.session.waiting.text.endswith("since 7 s"))
            assert (await running.status()).waiting.startswith(
                "starting: 1 of 3 attached, waiting for workers 0, 2 since "
            )
            rest = [await attached(running, rank) for rank in (0, 2)]
            for worker in (first, *rest):
                await worker.expect("welcome")
            for worker in (first, *rest):
                await worker.report(1, 0.01)
            await until(lambda: running.session.control_loop.iteration == 1)
            for rank in (0, 1):
                running.session.arrival(Arrival(worker=rank, iteration=2, verdict="ADDED", timestamp_us=0))
            await until(lambda: running.session.waiting.text.startswith("iteration"))
            assert (await running.status()).waiting.startswith("iteration 2 (k = 3 of 3): waiting for worker 2 since ")

    asyncio.run(scenario())
    starting = [record for record in caplog.records if "starting: 1 of 3" in record.getMessage()]
    assert len(starting) == 1


def test_objective_changes_a_hundred_times_in_a_row() -> None:
    async def scenario() -> None:
        async with controller(4) as running:
            workers = await running.start_all()
            begin_s = time.monotonic()
            for turn in range(100):
                k = 1 + turn % 4
                running.session.set_objective(f"fixed:{k}")
                if turn % 7 == 0:
                    await asyncio.sleep(0)
            running.session.set_objective("fixed:2")
            told = 0
            while told != 2:
                told = (await workers[3].expect("decision")).k
            assert running.session.slots.k == 2
            assert time.monotonic() - begin_s < 5
            workers[0].call.cancel()
            workers[1].call.cancel()
            workers[2].call.cancel()
            await until(lambda: running.session.control_loop.k == 1)  # fewer than requested, and the reason says so
            assert "1 of 4 live" in running.session.control_loop.changes[-1].reason

    asyncio.run(scenario())


def held_back(slots: Slots) -> asyncio.Event:
    """Return an event; writes to the switch are answered only while it is set."""
    written = asyncio.Event()

    async def write(_: JobSlots) -> None:
        await written.wait()

    slots.write = write
    return written


def test_workers_hear_of_a_generation_after_the_switch_admits_it() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            slots = running.session.slots
            written = held_back(slots)
            workers = [await attached(running, rank) for rank in range(2)]
            await until(lambda: slots.generation)
            await asyncio.sleep(0.05)
            assert [seat.state for seat in running.session.members.seats] == ["attached"] * 2
            written.set()
            first = await agreed("welcome", workers)
            written.clear()
            slots.on_lost("the switch was restarted")
            second = await agreed("regroup", workers)
            for worker in workers:
                await worker.regrouped(second)
            await until(lambda: slots.generation == second)
            await asyncio.sleep(0.05)
            assert running.session.job_state.phase == "regrouping"
            written.set()
            assert await agreed("resume", workers) == second > first

    asyncio.run(scenario())


def test_generation_lost_during_its_admission_is_started_again() -> None:
    """The switch restarts between the write of a generation and its answer."""

    async def scenario() -> None:
        async with controller(2) as running:
            slots = running.session.slots
            written = held_back(slots)
            workers = [await attached(running, rank) for rank in range(2)]
            await until(lambda: slots.generation)
            lost = slots.generation
            slots.on_lost("the switch was restarted")
            written.set()
            generation = await agreed("welcome", workers)
            assert generation == slots.generation > lost

    asyncio.run(scenario())


def test_module_is_imported_only_if_the_configuration_names_it() -> None:
    async def scenario() -> None:
        async with controller(4) as running:
            with pytest.raises(
                ConfigError, match=r"objective must be a module:Name that the job's configuration names, got 'os:abort'"
            ):
                running.session.set_objective("os:abort")
            running.session.objectives = ("operator:neg",)
            with pytest.raises(ConfigError, match="objective must be "):
                running.session.set_objective("drop:all")
            running.session.set_objective("operator:neg")
            assert running.session.control_loop.goal.name == "operator:neg"

    asyncio.run(scenario())
