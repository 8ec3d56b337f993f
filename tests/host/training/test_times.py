"""The parts of time in metrics lines add up to the known times of a training, in virtual time."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kofn_common.config.late_rules import RULES
from kofn_common.config.model import ModelSection
from kofn_common.config.policy import PolicySection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import TIME_PARTS
from kofn_host.agent.exchange import Contribution, Exchange
from kofn_host.compression.aggregate import Aggregate
from kofn_host.stopwatch import Times
from kofn_host.training.iteration_log import Begun, IterationLog
from kofn_host.training.loop import Training
from kofn_host.training.metrics import Metrics
from kofn_host.training.peer_to_peer import UnprobedLink
from kofn_host.training.reducer import Reducer
from kofn_host.workload.straggler_source import load_stragglers

COMPUTE_S, ABORTED_S, STEP_S = 8.0, 3.0, 2.0
LAST = 4


class VirtualTime:
    """A clock that stands still unless a part of the training's time is spent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.spent_s = 100.0, defaultdict[str, float](float)
        functions = SimpleNamespace(
            monotonic=self.now, time=self.now, thread_time=lambda: 0.0, sleep=lambda s: self.spend("compute", s)
        )
        for module in ("loop", "iteration_clock", "iteration_log"):
            monkeypatch.setattr(f"kofn_host.training.{module}.time", functions)

    def now(self) -> float:
        return self.now_s

    def spend(self, part: str, seconds: float) -> None:
        self.now_s += seconds
        self.spent_s[f"{part}_s"] += seconds

    def spend_all(self, times: Times) -> Times:
        for part in Times.__dataclass_fields__:
            self.spend(part, getattr(times, part))
        return times


@dataclass
class Over:
    """An iteration that is over before a computation ends, if `late`."""

    time: VirtualTime
    late: bool = False

    def wait(self, seconds: float) -> bool:
        self.time.spend("compute", ABORTED_S if self.late else seconds)
        return self.late


class Agent:
    """A worker's agent whose every call takes a known time. Iteration 2 is over before the worker has its gradient, if
    `late`; an iteration needs two gradients of a worker that computes several.
    """

    def __init__(self, training: Training, time: VirtualTime, rule: str, *, late: bool) -> None:
        self.training, self.time, self.late = training, time, late
        self.rule, self.entered, self.decision, self.iteration = RULES[rule], False, 0, 1
        self.over, self.link = Over(time), UnprobedLink()

    def begin(self) -> None:
        self.over.late = self.late and self.iteration == 2

    def catch_up(self) -> list[Aggregate]:
        return []

    def account(self) -> None:
        return None

    def all_reduce(self, given: Contribution, missed: Callable[[Exchange], bool]) -> Exchange:
        found: list[Aggregate] = []
        if self.over.late:
            found = self._end()
            if not missed(Exchange(handed_s=None, ended=found, times=self.time.spend_all(Times(wait=0.25)))):
                return Exchange(handed_s=None, missed=found)
        handed_s = self.time.now()
        self.time.spend_all(times := Times(encode=1.0, send=0.5))
        if (found and not self.rule.counts) or (given.stays and given.batch < 1):
            return Exchange(handed_s=handed_s, missed=found, times=times)
        self.time.spend_all(waited := Times(wait=5.0, receive=0.5, decode=0.25))
        times = Times(**{name: getattr(times, name) + getattr(waited, name) for name in Times.__dataclass_fields__})
        return Exchange(handed_s=handed_s, missed=found, ended=self._end(), times=times)

    def skip(self) -> list[Aggregate]:
        self.time.spend("wait", 4.0)
        return self._end()

    def _end(self) -> list[Aggregate]:
        self.iteration += 1
        self.begin()
        plan, mean = self.training.coding.planner.first(), np.ones(self.training.parameters, np.float32)
        checksums = np.zeros_like(self.training.replica.results)
        return [replace(Aggregate.of_all(self.iteration - 1, mean, 1, plan), checksums=checksums)]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sums(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {part: math.fsum(line[part] or 0.0 for line in lines) for part in TIME_PARTS}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_parts_add_up_to_the_time_under_every_rule(
    rule: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = VirtualTime(monkeypatch)
    config = Config(
        run=RunSection(max_iterations=LAST),
        model=ModelSection(hidden=(4,), compute_ms=1000 * COMPUTE_S),
        policy=PolicySection(late_gradient=rule),  # type: ignore[arg-type]
    )
    training = Training(config, 1)
    apply = training.replica.apply
    monkeypatch.setattr(training.replica, "apply", lambda *given: (time.spend("step", STEP_S), apply(*given))[1])
    agent = Agent(training, time, rule, late=late)
    with Metrics(tmp_path / "worker-1.jsonl") as metrics:
        assert training.run(cast(Reducer, agent), metrics, lambda report: None) == "iterations"
    lines = lines_of(tmp_path / "worker-1.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    assert time.spent_s["step_s"] == LAST * STEP_S
    assert sums(lines) == pytest.approx({part: time.spent_s[part] for part in TIME_PARTS})


def test_time_of_a_script_between_exchange_and_record_is_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP applies the mean before the session records the iteration."""
    time, config, agent = VirtualTime(monkeypatch), Config(), SimpleNamespace(account=list, link=UnprobedLink())
    with Metrics(tmp_path / "worker-1.jsonl") as metrics:
        log = IterationLog(config, metrics, load_stragglers(config, 1), 3)
        for iteration in (1, 2):
            ready_s = time.now()
            time.spend("compute", COMPUTE_S)
            begun = Begun(
                iteration=iteration,
                started=ready_s,
                ready_s=ready_s,
                first_s=time.now(),
                exchange_s=time.now(),
                blocking_s=0.0,
                blocked_s=0.0,
                decision=0,
            )
            times = time.spend_all(Times(encode=1.0, send=0.5, wait=5.0, decode=0.25))
            time.spend("step", STEP_S)
            values = np.ones(3, np.float32)
            step = log.step(cast(Reducer, agent), begun, Exchange(handed_s=begun.first_s, times=times), values)
            plan = Training(config, 1).coding.planner.first()
            log.applied(Aggregate.of_all(iteration, values, 1, plan), step)(values)
    assert sums(lines_of(tmp_path / "worker-1.jsonl")) == pytest.approx(
        {part: time.spent_s[part] for part in TIME_PARTS}
    )
