"""The controller's part of checkpoints: when one is complete, and what a resumed job begins with."""

import asyncio
import time

import grpc

from kofn_common.rpc import kofn_pb2 as pb
from tests.controller.harness import Running, Worker, controller, until
from tests.controller.job.test_service import refusal


async def training(running: Running, *ranks: int) -> list[Worker]:
    workers = await running.start_all(ranks=ranks or None)
    for worker in workers:
        await worker.ready(1)
    await until(lambda: all(running.session.members.seats[worker.rank].took_part for worker in workers))
    return workers


async def save(worker: Worker, iteration: int, *names: str) -> None:
    files = {f"{name}-{worker.rank}": f"sha of {name}-{worker.rank}" for name in ("ledger", *names)}
    await worker.say(saved=pb.Saved(iteration=iteration, files=files))


def state(**fields: object) -> pb.ControlState:
    return pb.ControlState(**{"objective": "throughput", "late_gradient": "merge", "age_weight": 0.5} | fields)  # type: ignore[arg-type]


def test_checkpoint_that_all_have_saved_goes_to_the_worker_with_the_replica() -> None:
    async def scenario() -> None:
        async with controller(3, objective="fixed:2") as running:
            workers = await training(running)
            await workers[1].report(19, 0.5)
            await workers[1].report(21, 0.5)
            await save(workers[2], 20)
            await save(workers[1], 20, "replica")
            await save(workers[0], 20)
            message = await workers[1].expect("checkpoint")
            assert message.iteration == 20
            assert message.files == {
                name: f"sha of {name}" for name in ("ledger-0", "ledger-1", "ledger-2", "replica-1")
            }
            assert (message.control.objective, message.control.k, [*message.control.missing]) == ("fixed:2", 2, [])
            assert [(aged.rank, aged.report.iteration) for aged in message.control.reports] == [(1, 19)]

    asyncio.run(scenario())


def test_checkpoint_is_complete_without_a_worker_that_dies_meanwhile() -> None:
    async def scenario() -> None:
        async with controller(3, objective="fixed:2") as running:
            workers = await training(running)
            await save(workers[0], 20, "replica")
            await save(workers[1], 20)
            workers[2].call.cancel()
            message = await workers[0].expect("checkpoint")
            assert [*message.control.missing] == [2]
            assert "ledger-2" not in message.files

    asyncio.run(scenario())


def test_new_workers_resume_at_their_checkpoint_with_its_k_and_reports() -> None:
    async def scenario() -> None:
        async with controller(3, objective="throughput") as running:
            reports = [
                pb.AgedReport(rank=rank, age_s=1.0, report=pb.Report(iteration=iteration, first_block_s=0.01 + rank))
                for iteration in (38, 39, 40)
                for rank in range(3)
            ]
            workers = [running.worker(rank) for rank in range(3)]
            for worker in workers:
                await worker.hello(checkpoint=40, control=state(k=2, reports=reports))
            for worker in workers:
                welcome = await worker.expect("welcome")
                assert (welcome.first_iteration, welcome.checkpoint, welcome.running) == (41, 40, False)
            loop = running.session.control_loop
            assert (loop.k, loop.late_policy.rule, loop.iteration) == (2, "merge", 40)
            assert not loop.due(time.monotonic())
            assert [*loop.measurements.reports] == [3, 3, 3]
            await workers[0].report(41, 0.02)
            await until(lambda: loop.iteration == 41)

    asyncio.run(scenario())


def test_resumed_job_does_not_wait_for_workers_that_its_checkpoint_lacks() -> None:
    async def scenario() -> None:
        async with controller(3, objective="fixed:2") as running:
            workers = [running.worker(rank) for rank in range(2)]
            for worker in workers:
                await worker.hello(checkpoint=40, control=state(k=2, missing=[2]))
            for worker in workers:
                assert (await worker.expect("welcome")).first_iteration == 41
                await worker.ready(41)
            late = running.worker(2)
            await late.hello(checkpoint=60)
            welcome = await late.expect("welcome")
            assert (welcome.running, welcome.checkpoint) == (True, 0)

    asyncio.run(scenario())


def test_worker_takes_over_its_ledger_only_before_it_has_taken_part() -> None:
    async def scenario() -> None:
        async with controller(2, start_workers=1, objective="fixed:1") as running:
            first = running.worker(0)
            await first.hello(checkpoint=40, control=state(k=1))
            assert (await first.expect("welcome")).checkpoint == 40
            await first.ready(41)
            for expected in (40, 0):
                late = running.worker(1)
                await late.hello(checkpoint=40)
                assert (await late.expect("welcome")).checkpoint == expected
                await late.ready(45)
                await until(lambda: running.session.members.seats[1].took_part)
                late.call.cancel()
                await until(lambda: running.session.members.seats[1].stream is None)

    asyncio.run(scenario())


def test_workers_with_different_checkpoints_do_not_start() -> None:
    async def scenario() -> None:
        async with controller(3) as running:
            first, second, third = (running.worker(rank) for rank in range(3))
            await first.hello(checkpoint=20)
            await until(lambda: running.session.members.seats[0].stream is not None)
            await second.hello(checkpoint=40)
            error = await refusal(first.call)
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # it looks again
            await third.hello()
            error = await refusal(third.call)
            assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "worker 2 has no iteration, worker 1 has iteration 40" in str(error.details())

    asyncio.run(scenario())
