"""A user's policies: their view of the past, when they are asked, and bad answers."""

import copy
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.cluster import Cluster, cluster
from kofn_common.config.errors import ConfigError
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.policy.history import CELLS, ITERATIONS, HistoryLog
from kofn_controller.policy.objective import objective

MINE = """
from kofn_controller.policy.policy import Policy

class Turns(Policy):
    made = []

    def __init__(self, workers):
        super().__init__(workers)
        self.seen = []
        self.made.append(self)

    def choose(self, forecast):
        self.seen.append(forecast)
        return 1 + len(self.seen) % forecast.workers

class Fails(Turns):
    answer = None

    def choose(self, forecast):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

class Misspelt(Policy):
    def chose(self, forecast):
        return 1

class Short(Policy):
    def choose(self):
        return 1

class Baseless:
    def choose(self, forecast):
        return 1

class Unready(Policy):
    def __init__(self, workers):
        raise RuntimeError("no table for this many")

    def choose(self, forecast):
        return 1
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return importlib.import_module("mine")


def going(name: str, iterations: int = 12, **policy: Any) -> Cluster:
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001, workers=3, objective=name, **policy)
    for iteration in range(1, iterations + 1):
        running.iterate(iteration)
    return running


def test_policy_is_asked_once_a_decision_and_its_k_is_taken(mine: Any) -> None:
    running = going("mine:Turns", margin=10.0)
    (policy,) = [each for each in mine.Turns.made if each.seen]
    assert len(policy.seen) >= 10 and running.control_loop.k == 1 + len(policy.seen) % 3
    changes = [(change.previous_k, change.k) for change in running.changes]
    assert changes[:4] == [(3, 2), (2, 3), (3, 1), (1, 2)], (
        "the policy takes turns, whatever the margin and the model are"
    )


def test_policy_sees_past_iterations(mine: Any) -> None:
    running = going("mine:Turns")
    forecast = mine.Turns.made[-1].seen[-1]
    seen = forecast.history
    assert seen.iteration.tolist() == [*range(1, 13)] and seen.arrival_s.shape == seen.late.shape == (12, 3)
    assert seen.k[0] == 3 and {*seen.k.tolist()} == {1, 2, 3}
    assert np.all(np.diff(seen.ended_s) > 0) and seen.now_s == running.now_s and seen.live.tolist() == [True] * 3
    slow = np.nanmean(seen.arrival_s[:, 2]) if np.isfinite(seen.arrival_s[:, 2]).any() else math.inf
    assert slow > np.nanmean(seen.arrival_s[:, 0]) and seen.late[:, 2].sum() > seen.late[:, 0].sum()
    assert forecast.workers == 3 and copy.deepcopy(seen) is seen
    with pytest.raises(ValueError, match="read-only"):
        seen.k[0] = 2
    running.control_loop.worker_left(2, "lost", running.now_s)
    forecast = mine.Turns.made[-1].seen[-1]
    assert forecast.workers == 2 and forecast.history.live.tolist() == [True, True, False]


def test_restarted_policy_remembers_nothing(mine: Any) -> None:
    running = going("mine:Turns")
    before = len(mine.Turns.made)
    running.control_loop.restart(range(3))
    assert len(mine.Turns.made) == before + 1 and mine.Turns.made[-1].seen == []
    assert running.control_loop.history.history(running.control_loop.live, 0.0).iteration.size == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (KeyError("k"), "objective 'mine:Fails' failed: KeyError: 'k'"),
        (0, "objective 'mine:Fails' must choose a whole number from 1 to 3, got 0"),
        (4, "got 4"),
        (2.0, "got 2.0"),
        (True, "got True"),
        (None, "got None"),
    ],
)
def test_bad_answer_keeps_k_and_is_reported(mine: Any, answer: Any, words: str) -> None:
    mine.Fails.answer = 2
    running = going("mine:Fails")
    assert (running.control_loop.k, running.control_loop.chooser.fault) == (2, "")
    mine.Fails.answer = answer
    for iteration in range(13, 16):
        running.iterate(iteration)
    assert running.control_loop.k == 2 and words in running.control_loop.chooser.fault
    mine.Fails.answer = np.int64(1)
    running.iterate(16)
    assert (running.control_loop.k, running.control_loop.chooser.fault) == (1, "")


def test_policy_that_cannot_be_created_is_refused_at_once(mine: Any) -> None:
    with pytest.raises(ConfigError, match=r"'mine:Unready' failed: RuntimeError: no table for this many"):
        objective("mine:Unready", 4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Baseless", "must be a class derived from kofn_controller.policy.policy.Policy, got Baseless"),
        ("Misspelt", "must define choose, got an abstract class"),
        ("Short", r"must have choose\(forecast\), got choose\(\)"),
    ],
)
def test_class_that_is_no_policy_is_refused_at_once(mine: Any, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"objective 'mine:{name}' {words}"):
        objective(f"mine:{name}", 4)


def test_history_has_losses_and_the_latest_iterations() -> None:
    log = HistoryLog(workers=2)
    for iteration in range(1, ITERATIONS + 11):
        log.report(0, pb.Report(iteration=iteration, first_block_s=0.25, loss=1 / iteration), 2, float(iteration))
        log.report(1, pb.Report(iteration=iteration, censored=True, late=True, k_most=1), 2, iteration + 0.5)
    # so late that its row belongs to another iteration
    log.report(0, pb.Report(iteration=3, first_block_s=9.0), 2, 999.0)
    seen = log.history(np.array([True, True]), 300.0)
    assert (seen.iteration[0], seen.iteration[-1], len(seen.iteration)) == (11, ITERATIONS + 10, ITERATIONS)
    assert seen.ended_s.tolist() == seen.iteration.tolist() and set(seen.k.tolist()) == {2}
    assert seen.loss[0, 0] == 1 / 11 and np.isnan(seen.loss[:, 1]).all()
    assert set(seen.arrival_s[:, 0]) == {0.25} and np.isnan(seen.arrival_s[:, 1]).all()
    assert seen.late[:, 1].all() and not seen.late[:, 0].any()


def test_history_of_many_workers_is_short() -> None:
    log = HistoryLog(workers=10_000)
    for iteration in range(1, 100):
        log.report(7, pb.Report(iteration=iteration, first_block_s=0.25), 5000, float(iteration))
    assert log.history(np.ones(10_000, np.bool_), 1.0).arrival_s.size <= CELLS
