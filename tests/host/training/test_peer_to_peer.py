"""Training by the workers' own communicator: equal parameters everywhere, and a clear end when a worker is gone."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_common.config.job import JobSection
from kofn_common.config.model import ModelSection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_host.agent.exchange import Contribution
from kofn_host.collectives.communicator import Communicator
from kofn_host.collectives.in_network import Nobody
from kofn_host.collectives.kinds.ring import Ring
from kofn_host.errors import AgentError, CollectiveError, GradientError
from kofn_host.training.loop import Training
from kofn_host.training.metrics import Metrics
from kofn_host.training.peer_to_peer import PeerToPeer
from tests.host.teams import address

WORKERS = 3


def config(**run: Any) -> Config:
    return Config(
        run=RunSection(trials=("all",), **{"max_iterations": 12, "evaluate_every": 5} | run),
        job=JobSection(workers=WORKERS, collective="ring"),
        model=ModelSection(hidden=(8,), compute_ms=0.0),
    )


def ring(rank: int, port: int) -> Ring:
    return Ring(rank, [f"{address(31, rank)}:{port}" for rank in range(WORKERS)], timeout_s=10.0)


def train(rank: int, port: int, path: Path, config: Config) -> tuple[Training, list[kofn_pb2.Report]]:
    """Run one worker's whole training without a controller."""
    training, reports = Training(config, rank), list[kofn_pb2.Report]()
    direct = PeerToPeer(lambda: ring(rank, port), training.coding.planner.first())
    asyncio.run(direct.join_first(1, 77, Nobody()))
    training.replica.start(0)
    with Metrics(path / f"worker-{rank}.jsonl") as metrics:
        try:
            assert training.run(direct, metrics, reports.append) == "iterations"
        finally:
            asyncio.run(direct.close())
        assert (direct.generation, direct.iteration, direct.totals()) == (77, 13, None)
        metrics.write(summary=direct.statistics())
        metrics.close(direct.totals(), training.replica.results)
    return training, reports


def test_all_replicas_are_equal_and_the_ledger_stays_empty(tmp_path: Path) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        trained = list(pool.map(lambda rank: train(rank, 19401, tmp_path, config()), range(WORKERS)))
    first = trained[0][0].replica
    assert first.results.size == 0
    state = first.state()
    assert state is not None and state.iteration == 12
    written = [
        [json.loads(line) for line in (tmp_path / f"worker-{rank}.jsonl").read_text().splitlines()]
        for rank in range(WORKERS)
    ]
    assert len({json.dumps([line["params"] for line in lines[:-1]]) for lines in written}) == 1
    for *lines, last in written:
        assert [line["iteration"] for line in lines] == list(range(1, 13))
        assert [line["accuracy"] is None for line in lines] == [i not in (5, 10, 12) for i in range(1, 13)]
        assert all((line["k"], line["count"], line["members"], line["late"]) == (3, 3, "0x7", False) for line in lines)
        assert last["summary"]["bytes_sent"] > 12 * 4 * trained[0][0].parameters
    for _, reports in trained:
        assert [report.iteration for report in reports] == list(range(1, 13))
        assert {(report.k_least, report.gradients, report.contributors, report.late) for report in reports} == {
            (3, 3.0, 3.0, False)
        }
    assert not list(tmp_path.glob("*.npz"))


def test_worker_told_to_fail_ends_its_call() -> None:
    """The other worker never calls."""
    there = [f"{address(32, rank)}:19403" for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda rank: Ring(rank, there), range(2))
    direct = PeerToPeer(lambda: one, Training(config(), 0).coding.planner.first())
    asyncio.run(direct.join_first(1, 1, Nobody()))
    teller = threading.Timer(0.1, lambda: direct.fail(AgentError("another one has come")))
    teller.start()
    with other, pytest.raises(AgentError, match="another one has come"):
        direct.all_reduce(Contribution(np.ones(3, np.float32)))
    teller.join()
    asyncio.run(direct.close())
    with pytest.raises(CollectiveError, match="is closed"):
        one.barrier()


def test_non_finite_gradient_is_refused() -> None:
    direct = PeerToPeer(lambda: Ring(0, [f"{address(32, 0)}:19404"]), Training(config(), 0).coding.planner.first())
    asyncio.run(direct.join_first(1, 1, Nobody()))
    with pytest.raises(GradientError, match="gradient element 1 must be finite, got nan"):
        direct.all_reduce(Contribution(np.array([0, np.nan, np.inf], np.float32)))
    asyncio.run(direct.close())


def test_running_job_cannot_be_joined() -> None:
    def connect() -> Communicator:
        raise AssertionError

    direct = PeerToPeer(connect, Training(config(), 0).coding.planner.first())

    async def join() -> None:
        async def ask() -> None:
            raise AssertionError("no replica is asked for")

        await direct.join_running(7, Nobody(), ask)  # type: ignore[arg-type]

    with pytest.raises(AgentError, match="runs already: its collective needs every worker from the beginning"):
        asyncio.run(join())
    with pytest.raises(AgentError, match="needs every worker: none can skip it"):
        direct.skip()


def test_missing_worker_is_named(tmp_path: Path) -> None:
    """Both neighbours name it, in mid-training."""

    def leave(rank: int) -> str:
        if rank == 1:
            communicator = ring(rank, 19402)
            communicator.all_reduce(np.zeros(Training(config(), 0).parameters, np.float32), op="mean").result()
            communicator.close()
            return "worker 1 has closed"
        try:
            train(rank, 19402, tmp_path, config())
        except CollectiveError as error:
            return str(error)
        return "nothing happened"

    with ThreadPoolExecutor(WORKERS) as pool:
        assert all("worker 1 has closed" in said for said in pool.map(leave, range(WORKERS)))
