"""What training does with an iteration that is over elsewhere, and what it says of it: no network, no switch."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.aggregate import Aggregate
from host.collective import Times
from host.metrics import Metrics
from host.model import Perceptron, load_shard
from host.residual import Books
from host.train import Training
from rpc import kofn_pb2
from run.config import Config, Late, Model, Policy, Run

MISSED = 3


class FakeAgent:
    """Worker 1's in an iteration that ends without it; `after`: then it is in this one, with a peer's parameters."""

    def __init__(self, training: Training, *, over: bool, after: int = 1) -> None:
        self.training, self.after = training, after
        self.entered, self.decision = False, 0
        self.times = Times(wait=0.02)
        self.over = threading.Event()
        self.iteration, self.given, self.skipped = 1, [], False
        if over:
            threading.Timer(0.01, self._end).start()

    def _end(self) -> None:
        self.iteration = self.after
        self.over.set()

    def catch_up(self) -> list[Aggregate]:
        return []

    def all_reduce(
        self, gradient: np.ndarray, *, meanwhile: Callable[[], object] = lambda: None
    ) -> tuple[float, list[Aggregate]]:
        self.given.append(gradient)
        meanwhile()
        return time.monotonic(), self._aggregates()

    def skip(self) -> list[Aggregate]:
        self.skipped = True
        return self._aggregates()

    def _aggregates(self) -> list[Aggregate]:
        mean = np.full(self.training.parameters, 0.5, np.float32)
        total = np.zeros(len(self.training.replica.results), np.int64)
        return [
            Aggregate(
                iteration=1,
                mean=mean,
                total=total,
                k=1,
                ks=(1, 1),
                count=1,
                members=[0],
                missed=MISSED,
                gradients=2.5,
                contributors=1.5,
                least=1,
                notes={},
                plan=self.training.coding.planner.first(),
                encoding=None,
            )
        ]


def train(
    late: Late, path: Path, *, compute_ms: float = 50.0, over: bool = True, after: int = 1
) -> tuple[FakeAgent, kofn_pb2.Report, dict[str, Any]]:
    """One iteration: the agent, the report and the metrics' line."""
    config = Config(
        run=Run(max_iterations=1), model=Model(hidden=(4,), compute_ms=compute_ms), policy=Policy(late=late)
    )
    training, reports = Training(config, 1), []
    agent, metrics = FakeAgent(training, over=over, after=after), Metrics(path / "worker-1.jsonl")
    assert training.run(agent, metrics, reports.append) == "iterations"
    nothing = np.zeros(0, np.int64)
    metrics.close(Books(nothing, nothing, nothing, nothing), nothing)
    (report,) = reports
    return agent, report, json.loads((path / "worker-1.jsonl").read_text())


def first_gradient() -> np.ndarray:
    batch = load_shard(1, Config().job.workers, Config().run.seed).batch(1, Config().model.batch)
    return Perceptron((4,), Config().run.seed).gradient(batch)[1]


@pytest.mark.parametrize(("late", "discarded"), [("finish", 0), ("drop", MISSED)])
def test_a_late_gradient_is_finished(late: Late, discarded: int, tmp_path: Path) -> None:
    agent, report, line = train(late, tmp_path)
    (given,) = agent.given
    assert np.array_equal(given, first_gradient())
    assert not agent.skipped
    assert (report.censored, report.late) == (False, True)
    assert report.gradient_norm2 == line["gradient_norm2"] == pytest.approx(float(np.sum(np.float64(given) ** 2)))
    assert report.aggregate_norm2 == line["aggregate_norm2"] == 0.25 * len(given)
    assert (report.gradients, report.contributors) == (2.5, 1.5)
    assert (line["computed"], line["late"], line["discarded"]) == (True, True, discarded)


def test_a_late_gradient_is_given_up_at_once(tmp_path: Path) -> None:
    """Computing it would take longer than a test may."""
    agent, report, line = train("abort", tmp_path, compute_ms=600_000.0)
    assert agent.skipped
    assert not agent.given
    assert (report.censored, report.late, report.gradient_norm2) == (True, True, 0.0)
    assert 0 < report.first_block_s <= report.iteration_s < 600
    assert report.aggregate_norm2 == line["aggregate_norm2"] > 0
    assert (line["computed"], line["late"], line["discarded"], line["loss"]) == (False, True, 0, None)


def test_nothing_is_given_up_that_is_in_time(tmp_path: Path) -> None:
    agent, report, _ = train("abort", tmp_path, over=False, compute_ms=1.0)
    assert len(agent.given) == 1
    assert not report.censored


def test_a_gradient_of_an_iteration_that_was_jumped_over_is_not_entered_where_late_ones_are_thrown_away(
    tmp_path: Path,
) -> None:
    agent, report, _ = train("drop", tmp_path, after=7)
    assert agent.skipped
    assert not agent.given
    assert (report.iteration, report.censored) == (1, False)


def test_all_results_are_in_the_sum_whenever_it_is_looked_at() -> None:
    """apply() leaves the newest for later; a peer's state replaces it too."""
    training = Training(Config(), 0)
    replica, one = training.replica, np.ones_like(training.replica.results)
    plan = training.coding.planner.first()
    replica.start(0)
    for iteration in (1, 2, 3):
        replica.apply(iteration, np.zeros(training.parameters, np.float32), iteration * one, plan)
        if iteration == 2:
            replica.add_up()
            replica.add_up()
    state = replica.state()
    assert state is not None
    assert (state.arrays["results"] == 6).all()
    replica.apply(4, np.zeros(training.parameters, np.float32), one, plan)
    assert (replica.results == 7).all()
    replica.apply(5, np.zeros(training.parameters, np.float32), one, plan)
    replica.restore(state)
    assert (replica.results == 6).all()
