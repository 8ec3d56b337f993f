"""Training reacts to an iteration that is over elsewhere and reports it; no network, no switch."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from kofn_common.config.late_rules import GIVE_UPS, RULES
from kofn_common.config.model import ModelSection
from kofn_common.config.policy import PolicySection
from kofn_common.config.run import RunSection
from kofn_common.config.schedule import ScheduleSection
from kofn_common.config.schema import Config
from kofn_common.rpc import kofn_pb2
from kofn_common.wire.sizes import PARTS
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.stopwatch import Times
from kofn_host.training.loop import Training
from kofn_host.training.metrics import Metrics
from kofn_host.training.overlapped import OverlappedTraining
from kofn_host.training.peer_to_peer import UnprobedLink
from kofn_host.training.reducer import Reducer
from kofn_host.workload.model import Perceptron, load_shard

MISSED = 3

TIMES = Times(wait=0.02)


class FakeAgent:
    """Worker 1's agent. Its iteration ends without its gradient if that is `over`, else with its gradients.

    `needs`: gradients that complete the iteration; `ends`: after the first one another worker brings the rest; `tells`:
    ended iterations that the worker must hear of before it may give its first gradient.
    """

    def __init__(self, training: Training, *, over: bool, needs: int = 1, ends: bool = False, tells: int = 0) -> None:
        self.training, self.needs, self.ends, self.tells = training, needs, ends, tells
        self.rule = RULES[training._config.policy.late_policy.rule]
        self.entered, self.decision, self.link = False, 0, UnprobedLink()
        self.over = threading.Event()
        self.iteration, self.given, self.skipped = 1, list[Any](), False
        self.stays: list[bool] = []
        if over:
            threading.Timer(0.01, self.over.set).start()

    def catch_up(self) -> list[Aggregate]:
        return []

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool]) -> Exchange:
        assert given.batch == len(self.given)
        assert given.gradient is not None
        earlier = list[Update]()
        for told in range(self.tells):
            self.iteration += 1
            exchange = Exchange(handed_s=None, ended=self._aggregates(told + 1), times=TIMES)
            earlier += exchange.ended
            if not missed(exchange):
                return Exchange(handed_s=None, missed=earlier)
        self.given.append(given.gradient)
        self.stays.append(given.stays)
        self.begun = given.begun
        if self.ends:
            self.over.set()
        ended = [] if given.stays and len(self.given) < self.needs else self._aggregates(self.iteration)
        return Exchange(handed_s=time.monotonic(), missed=earlier, ended=ended, times=TIMES)

    def account(self) -> None:
        return None

    def skip(self) -> list[Aggregate]:
        self.skipped = True
        return self._aggregates(self.iteration)

    def _aggregates(self, iteration: int) -> list[Aggregate]:
        mean = np.full(self.training.coding.elements, 0.5, np.float32)
        checksums = np.zeros(len(self.training.replica.results), np.int64)
        return [
            Aggregate(
                iteration=iteration,
                mean=mean,
                checksums=checksums,
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
    rule: str, path: Path, *, compute_ms: float = 50.0, over: bool = True, last: int = 1, **given: Any
) -> tuple[FakeAgent, kofn_pb2.Report, dict[str, Any]]:
    """Train until the end of iteration `last`; return the agent, the report and the first line of metrics."""
    config = Config(
        run=RunSection(max_iterations=last),
        model=ModelSection(hidden=(4,), compute_ms=compute_ms),
        policy=PolicySection(late_gradient=rule),  # type: ignore[arg-type]
    )
    training, reports = Training(config, 1), list[Any]()
    agent, metrics = FakeAgent(training, over=over, **given), Metrics(path / "worker-1.jsonl")
    assert training.run(cast(Reducer, agent), metrics, reports.append) == "iterations"
    nothing = np.zeros(1, np.int64)
    metrics.close(LedgerTotals(nothing, nothing, nothing, nothing), nothing)
    (report,) = reports
    return agent, report, json.loads((path / "worker-1.jsonl").read_text().splitlines()[0])


def test_iteration_without_a_gradient_of_the_worker_has_no_late_gradient(tmp_path: Path) -> None:
    """The controller, too, counts one late gradient, however many iterations the worker catches up over."""
    _, report, _ = train("merge", tmp_path, over=False, compute_ms=1.0, tells=2, last=3)
    lines = map(json.loads, (tmp_path / "worker-1.jsonl").read_text().splitlines()[:3])
    assert [(line["iteration"], line["late"]) for line in lines] == [(1, True), (2, False), (3, False)]
    assert report.late


class JoinsAtTheEnd(FakeAgent):
    """Its worker joins after the last iteration has ended at the others."""

    def catch_up(self) -> list[Aggregate]:
        self.iteration = 2
        return self._aggregates(1)


def test_worker_that_joins_at_the_end_applies_the_last_iterations(tmp_path: Path) -> None:
    """Otherwise its parameters and its sum of results would be older than the others'."""
    training = Training(Config(run=RunSection(max_iterations=1), model=ModelSection(hidden=(4,))), 1)
    agent, metrics = JoinsAtTheEnd(training, over=True), Metrics(tmp_path / "worker-1.jsonl")
    assert training.run(cast(Reducer, agent), metrics, lambda report: None) == "iterations"
    nothing = np.zeros(1, np.int64)
    metrics.close(LedgerTotals(nothing, nothing, nothing, nothing), nothing)
    assert training.replica.iteration == 1
    assert not agent.given


def first_gradients() -> list[np.ndarray]:
    """Return the gradients of the first iteration, one a batch."""
    shard, model = load_shard(1, Config().job.workers, Config().run.seed), Perceptron((4,), Config().run.seed)
    batches = [shard.batch(1, Config().model.batch, number) for number in range(PARTS)]
    return [model.gradient(batch)[1] for batch in batches]


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.gives_up])
def test_late_gradient_is_finished(rule: str, tmp_path: Path) -> None:
    agent, report, line = train(rule, tmp_path)
    (given,) = agent.given
    assert np.array_equal(given, first_gradients()[0])
    assert not agent.skipped
    assert (report.censored, report.late) == (False, True)
    assert report.gradient_norm2 == line["gradient_norm2"] == pytest.approx(float(np.sum(np.float64(given) ** 2)))
    assert report.aggregate_norm2 == line["aggregate_norm2"] == 0.25 * len(given)
    assert (report.gradients, report.contributors) == (2.5, 1.5)
    assert (line["computed"], line["late"]) == (True, True)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.gives_up])
def test_late_gradient_is_given_up_at_once(rule: str, tmp_path: Path) -> None:
    """Computing it would take longer than a test may."""
    agent, report, line = train(rule, tmp_path, compute_ms=600_000.0)
    assert agent.skipped
    assert not agent.given
    assert (report.censored, report.late, report.gradient_norm2) == (True, True, 0.0)
    assert 0 < report.first_block_s <= report.iteration_s < 600
    assert report.aggregate_norm2 == line["aggregate_norm2"] > 0
    assert (line["computed"], line["late"], line["loss"]) == (False, True, None)


@pytest.mark.parametrize("rule", RULES)
def test_gradient_in_time_is_not_given_up(rule: str, tmp_path: Path) -> None:
    agent, report, _ = train(rule, tmp_path, over=False, compute_ms=1.0)
    assert len(agent.given) == 1
    assert not agent.skipped
    assert not report.censored


@pytest.mark.parametrize("rule", RULES)
def test_late_gradient_is_not_given_after_the_last_iteration(rule: str, tmp_path: Path) -> None:
    """No worker applies an iteration after the last one, so the gradient in its sum would be lost."""
    agent, report, line = train(rule, tmp_path, over=False, compute_ms=1.0, tells=2, last=2)
    assert not agent.given
    assert (report.iteration, report.censored, line["computed"]) == (1, False, True)


def test_late_gradient_is_given_once_ended_iterations_are_applied(tmp_path: Path) -> None:
    """It is the same gradient, with the iteration in which it was begun."""
    agent, report, line = train("async", tmp_path, over=False, compute_ms=1.0, tells=2, last=3)
    (given,) = agent.given
    assert (agent.begun, given.tobytes()) == (1, first_gradients()[0].tobytes())
    assert (report.iteration, report.late, report.iterations_behind) == (1, True, 2)
    assert (line["iteration"], line["computed"]) == (1, True)


@pytest.mark.parametrize(("needs", "given"), [(1, 1), (2, 2), (3, 3), (PARTS, PARTS), (PARTS + 1, PARTS)])
def test_worker_that_contributed_computes_further_batches_until_the_iteration_is_over(
    needs: int, given: int, tmp_path: Path
) -> None:
    """The batches have the same parameters and other images, at most as many as a block has parts. The last call waits
    for the end.
    """
    agent, report, line = train("batch-sync", tmp_path, over=False, compute_ms=1.0, needs=needs)
    assert [gradient.tobytes() for gradient in agent.given] == [one.tobytes() for one in first_gradients()[:given]]
    assert agent.stays == [batch < PARTS - 1 for batch in range(given)]
    assert not agent.skipped
    assert (report.censored, line["computed"]) == (False, True)
    assert line["gradient_norm2"] == pytest.approx(float(np.sum(np.float64(agent.given[0]) ** 2))), (
        "the norm must be that of the first gradient"
    )


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.repeats])
def test_other_rules_compute_no_further_batch(rule: str, tmp_path: Path) -> None:
    agent, _, _ = train(rule, tmp_path, over=False, compute_ms=1.0, needs=PARTS)
    assert agent.stays == [False]


def test_further_batch_is_given_up_when_others_complete_the_iteration(tmp_path: Path) -> None:
    """The worker counts as having contributed."""
    agent, report, line = train("batch-sync", tmp_path, over=False, compute_ms=5.0, needs=PARTS, ends=True)
    assert len(agent.given) == 1
    assert agent.skipped
    assert (report.censored, line["computed"]) == (False, True)
    assert report.gradient_norm2 == pytest.approx(float(np.sum(np.float64(agent.given[0]) ** 2)))


class AlwaysLate(FakeAgent):
    """An agent whose iterations are all over elsewhere before its worker has a gradient."""

    def __init__(self, training: Training) -> None:
        super().__init__(training, over=False)
        self.over.set()
        self.skips, self.finished = 0, list[int | None]()

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool]) -> Exchange:
        earlier = Exchange(handed_s=None, ended=self._next())
        if not missed(earlier):
            return Exchange(handed_s=None, missed=earlier.ended)
        self.finished.append(given.begun)
        return Exchange(handed_s=time.monotonic(), missed=earlier.ended)

    def skip(self) -> list[Aggregate]:
        self.skips += 1
        return self._next()

    def _next(self) -> list[Aggregate]:
        self.iteration += 1
        return self._aggregates(self.iteration - 1)


class AlwaysLateInPieces(AlwaysLate):
    """The same for a gradient that comes in pieces."""

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool] = lambda _: True) -> Exchange:
        assert given.stream is not None
        while not given.stream.pieces.whole:
            time.sleep(0.001)
        found = super().all_reduce(given, missed)
        given.stream.finish(found.updates[0].mean)
        return found


def always_late(
    rule: str, path: Path, kind: type[Training], agent_kind: type[AlwaysLate], schedule: ScheduleSection
) -> AlwaysLate:
    """Return the agent of a training after GIVE_UPS + 4 iterations."""
    config = Config(
        run=RunSection(max_iterations=GIVE_UPS + 4),
        model=ModelSection(hidden=(4,), compute_ms=1.0),
        policy=PolicySection(late_gradient=rule),  # type: ignore[arg-type]
        schedule=schedule,
    )
    training = kind(config, 1)
    agent = agent_kind(training)
    with Metrics(path / "worker-1.jsonl") as metrics:
        training.run(cast(Reducer, agent), metrics, lambda report: None)
    return agent


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.gives_up])
def test_worker_that_gave_up_often_finishes_its_gradients(rule: str, tmp_path: Path) -> None:
    """Otherwise it would compute in vain for ever. The last gradient is not given, since no iteration follows."""
    agent = always_late(rule, tmp_path, Training, AlwaysLate, ScheduleSection())
    assert agent.skips == GIVE_UPS
    assert agent.finished == [*range(GIVE_UPS + 1, GIVE_UPS + 4)]


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.gives_up])
def test_scheduled_worker_that_gave_up_often_finishes_its_gradients(rule: str, tmp_path: Path) -> None:
    agent = always_late(rule, tmp_path, OverlappedTraining, AlwaysLateInPieces, ScheduleSection(family="sequential"))
    assert agent.skips == GIVE_UPS
    assert agent.finished == [*range(GIVE_UPS + 1, GIVE_UPS + 5)]


def test_all_results_are_in_the_sum_whenever_it_is_read() -> None:
    """A peer's state replaces the sum, too."""
    training = Training(Config(), 0)
    replica, one = training.replica, np.ones_like(training.replica.results)
    plan = training.coding.planner.first()
    replica.start(0)
    for iteration in (1, 2, 3):
        replica.apply(iteration, np.zeros(training.parameters, np.float32), iteration * one, plan)
    state = replica.state()
    assert state is not None
    assert (state.arrays["results"] == 6).all()
    replica.apply(4, np.zeros(training.parameters, np.float32), one, plan)
    assert (replica.results == 7).all()
    replica.apply(5, np.zeros(training.parameters, np.float32), one, plan)
    replica.restore(state)
    assert (replica.results == 6).all()
