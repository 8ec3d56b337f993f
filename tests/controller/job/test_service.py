"""The gRPC services with a real server and real stubs; only the switch is missing."""

import asyncio
import json
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from kofn_common.config.job import JobSection
from kofn_common.config.policy import PolicySection
from kofn_common.results.objective_notes import read_objective_notes
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.running_clock import RunningClock
from kofn_controller.job.recovery import ANSWER_S
from kofn_controller.job.session import PAUSE_S
from kofn_controller.job.state import Phase
from kofn_controller.job.status_message import status_message
from kofn_controller.policy.control_loop import ControlLoop
from tests.controller import failing
from tests.controller.harness import controller, setup, until


async def refusal(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()  # type: ignore[attr-defined]
    return error.value


def test_all_workers_start_together() -> None:
    async def scenario() -> None:
        async with controller(3) as running:
            workers = [running.worker(rank) for rank in (2, 0, 1)]
            for worker in workers[:2]:
                await worker.hello()
            await until(lambda: len(running.session.members.attached) == 2)
            assert not running.session.started
            await workers[2].hello()
            for worker in workers:
                welcome = await worker.expect("welcome")
                assert (welcome.workers, welcome.k, welcome.first_iteration, welcome.running) == (3, 3, 1, False)
                assert welcome.generation == running.session.job_state.generation > time.time() - 60
                assert [(peer.rank, peer.address) for peer in welcome.peers] == [
                    (rank, f"10.9.1.{rank}:50053") for rank in range(3)
                ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"rank": 4}, "INVALID_ARGUMENT", "rank 4: job 1 has the ranks 0 to 3"),
        ({"job": 7}, "INVALID_ARGUMENT", "job 7: this controller runs job 1"),
        ({"peer_address": "here"}, "INVALID_ARGUMENT", "peer_address 'here' of worker 1: HOST:PORT is expected"),
        (
            {"iteration": 5},
            "INVALID_ARGUMENT",
            "worker 1 is in iteration 5 of no generation: both or none are known",
        ),
        (
            {"iteration": 5, "generation": 2**32 - 1},
            "INVALID_ARGUMENT",
            "worker 1: generation 4294967295 is in the future (it is a time in seconds)",
        ),
        (
            {"rank": 0, "peer_address": "10.9.8.7:50053"},
            "ALREADY_EXISTS",
            "worker 0 of job 1 is attached from 10.9.1.0, this is 10.9.8.7: "
            "a rank has one worker (one that vanished is given up after 5 s)",
        ),
    ],
)
def test_unsuitable_workers_are_told_why(fields: dict[str, Any], code: str, words: str) -> None:
    async def scenario() -> None:
        async with controller() as running:
            first = running.worker(0)
            await first.hello()
            await until(lambda: running.session.members.attached)
            other = running.worker(1)
            good = {"job": 1, "rank": 1, "peer_address": "10.9.1.1:50053"}
            await other.say(hello=pb.Hello(**{**good, **fields}))
            error = await refusal(other.call)
            assert error.code() is grpc.StatusCode[code]
            assert error.details() == words
            assert len(running.session.members.attached) == 1

    asyncio.run(scenario())


def test_hello_is_required_first() -> None:
    async def scenario() -> None:
        async with controller() as running:
            worker = running.worker(0)
            await worker.report(1, 0.01)
            error = await refusal(worker.call)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "the first message must be a Hello"

    asyncio.run(scenario())


def test_worker_may_leave_and_return_before_the_start() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            worker = running.worker(0)
            await worker.hello()
            await until(lambda: running.session.members.attached)
            worker.call.cancel()
            await until(lambda: not running.session.members.attached)
            await running.start_all()
            assert [entry.attachments for entry in (await running.status()).worker] == [2, 1]

    asyncio.run(scenario())


def test_straggler_lowers_k_and_all_workers_are_told(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    async def scenario() -> None:
        random = np.random.default_rng(1)
        async with controller(4, journal=path, warm_up=3) as running:
            workers = await running.start_all()
            for iteration in range(1, 25):
                for worker in workers:
                    blocked_s = 0.06 if worker.rank == 3 else 0.0
                    await worker.report(iteration, 0.010 + blocked_s + random.exponential(0.0003))
                await until(lambda iteration=iteration: running.session.control_loop.iteration >= iteration)
            await until(lambda: running.session.control_loop.k == 3)
            for worker in workers:
                assert (await worker.expect("decision")).k == 3
            status = await running.inspector.GetStatus(pb.StatusRequest())
            assert (status.k, status.live, status.workers, status.objective) == (3, 4, 4, "throughput")
            assert status.worker[3].lambda_s > 20 * status.worker[0].lambda_s
            assert [entry.k for entry in status.expected] == [1, 2, 3, 4]
            assert status.changes[0].previous_k == 4
            assert not status.switch_connected

    asyncio.run(scenario())
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    decisions = [line for line in lines if "reason" in line]
    samples = [line for line in lines if "live" in line]
    assert (decisions[0]["previous_k"], decisions[0]["k"]) == (4, 3)
    assert all(len(decisions[0][name]) == 4 for name in ("lambda_s", "expected_s", "predicted_s", "measured_s"))
    assert decisions[0]["measured_s"][:3] == [None] * 3 and decisions[0]["overhead_s"] is None
    assert [sample["iteration"] for sample in samples] == list(range(1, 25))


def test_report_does_not_trigger_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn_controller.job.session.TICK_S", 3600.0)

    async def scenario() -> None:
        async with controller(2, warm_up=1) as running:
            session = running.session
            monkeypatch.setattr(type(session.control_loop), "choose", lambda *_: pytest.fail("at a report"))
            for worker in await running.start_all():
                await worker.report(1, 0.01)
            await until(session.control_loop.measurements.reports.all)
            assert session.control_loop.due(time.monotonic())

    asyncio.run(scenario())


def test_first_finished_worker_triggers_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that ends before any pause still has its prediction."""
    monkeypatch.setattr("kofn_controller.job.session.TICK_S", 3600.0)

    async def scenario() -> None:
        async with controller(2, warm_up=1) as running:
            workers = await running.start_all()
            for worker in workers:
                await worker.report(1, 0.01, iteration_s=0.02)
            await until(running.session.control_loop.measurements.reports.all)
            assert not (await running.status()).expected
            await workers[0].finish("iterations")
            await until(lambda: running.session.members.seats[0].finished)
            assert [entry.k for entry in (await running.status()).expected] == [1, 2]

    asyncio.run(scenario())


def test_lost_worker_lowers_live_and_k_at_once() -> None:
    async def scenario() -> None:
        async with controller(4) as running:
            workers = await running.start_all()
            workers[2].call.cancel()
            for worker in workers[:2]:
                assert (await worker.expect("decision")).k == 3
            status = await running.inspector.GetStatus(pb.StatusRequest())
            assert (status.live, status.k) == (3, 3)
            assert [worker.live for worker in status.worker] == [True, True, False, True]
            assert status.changes[-1].reason == "worker 2 lost: 3 of 4 live"

    asyncio.run(scenario())


VANISHING = """
import sys, grpc
from kofn_common.rpc import kofn_pb2 as pb, kofn_pb2_grpc
def messages():
    yield pb.WorkerMessage(hello=pb.Hello(job=1, rank=1, peer_address="10.9.9.1:50053"))
    sys.stdin.read()
with grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)]) as channel:
    for message in kofn_pb2_grpc.CoordinatorStub(channel).Attach(messages()):
        print(message.WhichOneof("message"), flush=True)
"""


@pytest.mark.slow
def test_worker_that_vanishes_silently_is_noticed() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            staying = running.worker(0)
            await staying.hello()
            vanishing = await asyncio.create_subprocess_exec(
                sys.executable, "-c", VANISHING, running.address,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                assert vanishing.stdout is not None
                assert await vanishing.stdout.readline() == b"welcome\n"
                vanishing.send_signal(signal.SIGSTOP)  # the connection stays open without answers, as if unplugged
                stopped_s = time.monotonic()
                await staying.expect("welcome")
                assert (await staying.expect("decision")).k == 1
                assert time.monotonic() - stopped_s < 8
            finally:
                vanishing.kill()
                await vanishing.wait()

    asyncio.run(scenario())


def test_job_stops_when_all_live_workers_have_finished() -> None:
    async def scenario() -> None:
        async with controller(3) as running:
            workers = await running.start_all()
            await workers[0].finish("target")
            await workers[1].finish("target")
            await until(lambda: sum(bool(seat.finished) for seat in running.session.members.seats) == 2)
            assert not running.session.stopped
            workers[2].call.cancel()  # the last worker never finishes, but it is gone
            assert (await workers[0].expect("stop")).reason == "target"
            await workers[0].call.done_writing()
            while await workers[0].call.read() is not grpc.aio.EOF:  # there may be a decision first
                continue
            assert (await workers[0].call.code()) is grpc.StatusCode.OK

    asyncio.run(scenario())


def test_stopped_worker_is_not_awaited() -> None:
    async def scenario() -> None:
        async with controller(3) as running:
            workers = await running.start_all()
            await workers[0].finish("stopped")
            assert (await workers[1].expect("decision")).k == 2
            assert not running.session.stopped

    asyncio.run(scenario())


def test_journal_names_the_source_of_an_objective(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    async def scenario() -> None:
        async with controller(4, journal=path) as running:
            await running.start_all()
            await running.inspector.SetObjective(pb.Objective(objective="fixed:2"))
            await running.inspector.SetObjective(pb.Objective(objective="all", planned=True))
            with pytest.raises(grpc.aio.AioRpcError):
                await running.inspector.SetObjective(pb.Objective(objective="fixed:9"))

    asyncio.run(scenario())
    notes = read_objective_notes(path, 1)
    assert [(note.objective, note.planned, note.by_hand) for note in notes] == [
        ("fixed:2", False, True),
        ("all", True, False),
    ]
    assert notes[0].words == "objective fixed:2 set by hand at iteration 0"
    assert read_objective_notes(path, 2) == []


def test_journal_has_the_faults_of_an_objective(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"

    async def scenario() -> None:
        async with controller(4, journal=path, objective="tests.controller.failing:costs") as running:
            workers = await running.start_all()
            for iteration in range(1, 5):
                for worker in workers:
                    await worker.report(iteration, 0.010)
                await until(lambda iteration=iteration: running.session.control_loop.iteration >= iteration)
                await until(lambda: running.session.control_loop.chooser.fault)

    asyncio.run(scenario())
    (note,) = read_objective_notes(path, 1)
    place = f"{Path(failing.__file__)}:7"
    assert note.fault == f"objective 'tests.controller.failing:costs' failed: ZeroDivisionError: no data ({place})"
    assert not note.by_hand


def test_objectives_take_effect_at_once_or_are_refused() -> None:
    async def scenario() -> None:
        async with controller(4) as running:
            workers = await running.start_all()
            status = await running.inspector.SetObjective(pb.Objective(objective="fixed:2"))
            assert (status.k, status.objective) == (2, "fixed:2")
            assert (await workers[0].expect("decision")).k == 2
            assert (await running.inspector.SetObjective(pb.Objective(objective="all"))).k == 4
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await running.inspector.SetObjective(pb.Objective(objective="fixed:9"))
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "'fixed:9'" in (error.value.details() or "")
            assert (await running.inspector.GetStatus(pb.StatusRequest())).k == 4

    asyncio.run(scenario())


def test_watching_yields_changes_only() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            statuses = running.inspector.WatchStatus(pb.StatusRequest(interval_s=0.05))
            assert (await statuses.read()).live == 0
            nothing = asyncio.create_task(statuses.read())
            done, _ = await asyncio.wait([nothing], timeout=0.3)
            assert not done
            await running.worker(0).hello()
            assert (await nothing).live == 1
            statuses.cancel()

    asyncio.run(scenario())


def test_bad_reports_are_refused_and_the_stream_continues() -> None:
    async def scenario() -> None:
        async with controller(2) as running:
            workers = await running.start_all()
            for iteration, time_s in ((1, float("nan")), (1, -1.0), (2**31, 0.01), (0, 0.01)):
                await workers[0].report(iteration, time_s)
            await workers[0].report(1, 0.01, gradient_norm2=float("nan"))
            await workers[0].report(1, 0.01, aggregate_norm2=-1.0)
            await workers[0].report(1, 0.01, gradients=-1.0, contributors=2.0)
            await workers[0].report(1, 0.01, gradient_norm2=2.0, aggregate_norm2=1.0, gradients=3.0, contributors=2.0)
            await workers[0].report(1, 0.01)
            taken = running.session.control_loop.measurements
            await until(lambda: taken.refused == 8)
            assert taken.reports[0] == 1
            signal = running.session.control_loop.worth_model.correlation.signal
            assert signal == pytest.approx(0.5), "|a|^2 = 1 = |G|^2 + S / 3 and |g|^2 = 2 = |G|^2 + S"

    asyncio.run(scenario())


def test_status_has_the_latest_metric_that_is_a_number() -> None:
    control_loop = ControlLoop(workers=2, policy=PolicySection())
    assert not status_message(control_loop).HasField("metric")
    for iteration, metric in enumerate((0.5, 0.7, math.nan), 1):
        report = pb.Report(iteration=iteration, first_block_s=0.01, iteration_s=0.02, metric=metric)
        assert control_loop.report(0, report, float(iteration))
    assert status_message(control_loop).metric == 0.7


def test_stop_of_the_controller_is_no_silence_of_the_workers() -> None:
    now = [0.0]
    session = setup(JobSection(workers=2))
    session.clock = RunningClock(PAUSE_S, lambda: now[0])
    session.job_state.enter(Phase.REGROUPING, session.clock())
    session.life.recovery.waiting = {0}
    now[0] += 75.0
    assert session.life.recovery.overdue(session.clock()) == []
    for _ in range(int(ANSWER_S)):
        now[0] += 1.0
        overdue = session.life.recovery.overdue(session.clock())
    assert overdue == [0]
