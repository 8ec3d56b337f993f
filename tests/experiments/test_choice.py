"""The choice of rule and k against fixed choices in hindsight, in worlds that `kofn experiment k` does not have.

`make long ARGS='-k test_choice -rP'` prints every world's figures.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from rich.console import Console

from kofn.experiments.engine import TaskEngine
from kofn.experiments.k.columns import choice_columns
from kofn.experiments.k.hindsight import hindsights
from kofn.experiments.k.worlds import LONG, SHORT, trials
from kofn.experiments.matrix import Scenario, cells, run_cells
from kofn.experiments.trials import read_trials
from kofn.run.plan import RunPlan
from kofn.sim.runner import execute
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder
from tests.sim.lab import COSTS

SEEDS = 3

MEAN, MOST = 1.03, 1.15
"""The permitted geometric mean of the ratios of all worlds outside WEAK, and the greatest ratio of a single world."""

WEAK = {
    "edge of stability": math.inf,  # only merge:5 reaches the target with every seed, and `progress` never merges
    "slow links": 1.9,  # gradients that fast workers repeat fill their links: the predicted times leave this out
    "bursts": 1.5,  # with a momentum of 0.5, old gradients are worth more than predicted
    "graded": 1.5,  # at a small learning rate, old gradients are worth more than predicted
}
"""The permitted ratios of the worlds in which `progress` is far from the best fixed choice."""


def blocked(workers: int, others_ms: float, *last_ms: float, **more: Any) -> list[dict[str, Any]]:
    """Return workers of which the last ones have their own mean blocking times; `more` are further keys of each."""
    means_ms = [others_ms] * (workers - len(last_ms)) + list(last_ms)
    return [{"workers": [rank], "mean_ms": mean_ms, **more} for rank, mean_ms in enumerate(means_ms)]


WORLDS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "equal": (8, 0.05, {"model": {"batch": 128}, "straggler": blocked(8, 20)}),
    "edge of stability": (10, 2.0, {"model": {"momentum": 0.0}, "straggler": blocked(10, 2, 80)}),
    "one slow": (4, 0.1, {"straggler": blocked(4, 5, 60)}),
    "pareto": (5, 0.2, {"compress": {"codec": "int8"}, "straggler": blocked(5, 15, law="pareto")}),
    "hardware": (
        6,
        0.05,
        {
            "compress": {"codec": "int16"},
            "straggler": [*blocked(4, 3), {"workers": [4, 5], "mean_ms": 3, "compute_ms": 25}],
        },
    ),
    "graded": (7, 0.02, {"straggler": [{"workers": [rank], "mean_ms": 2 * 1.7**rank} for rank in range(7)]}),
    "bursts": (
        8,
        0.3,
        {"model": {"momentum": 0.5}, "straggler": blocked(8, 12, law="bursty", burst_share=0.2)},
    ),
    "exponential": (9, 0.1, {"compress": {"codec": "int8"}, "straggler": blocked(9, 20, law="exponential")}),
    "two groups": (
        10,
        0.03,
        {
            "straggler": blocked(10, 3),
            "shock": [
                {"workers": list(range(first, first + 5)), "blocking_ms": 40, "for_ms": 400, "share": 0.25}
                for first in (0, 5)
            ],
        },
    ),
    "slow links": (
        4,
        0.1,
        {"network": {"link_mbps": 10}, "compress": {"codec": "auto"}, "straggler": blocked(4, 4, 40)},
    ),
    "shifting": (6, 0.1, {"run": {"shift_every": 60}, "model": {"batch": 64}, "straggler": blocked(6, 3, 50)}),
    "skewed": (
        8,
        0.1,
        {"network": {"link_mbps": 20}, "model": {"dirichlet": 0.3}, "straggler": blocked(8, 4, 40, 40)},
    ),
}
"""Worlds by name: workers, learning rate, and further tables of the configuration."""


def scenario(name: str) -> Scenario:
    """Return a world with `progress` and the fixed choices of `kofn experiment k`."""
    workers, rate, tables = WORLDS[name]
    objectives = [name for name in trials(workers) if name != "throughput"]
    document: dict[str, Any] = {
        "run": {"trials": objectives, "accuracy_over": 10, "max_iterations": max(SHORT, round(LONG / rate))},
        "job": {"workers": workers, "words": 32},
        "model": {"learning_rate": rate},
    }
    for table, entries in tables.items():
        document[table] = document.get(table, {}) | entries if isinstance(entries, dict) else entries
    return Scenario(name=name.replace(" ", "-"), config=Config.of(document))


def simulate(plan: RunPlan, console: Console) -> RunFolder:
    return execute(plan, console, lambda: COSTS)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_progress_takes_hardly_longer_than_the_best_fixed_choice(tmp_path: Path) -> None:
    ratios = dict(measured(tmp_path))
    usual = {name: ratio for name, ratio in ratios.items() if name not in WEAK}
    mean = geometric_mean(usual.values())
    print(f"geometric mean {mean:.3f}, with {', '.join(WEAK)} {geometric_mean(ratios.values()):.3f}")
    assert mean <= MEAN
    assert not {name: ratio for name, ratio in ratios.items() if ratio > WEAK.get(name, MOST)}


def measured(out: Path) -> Iterator[tuple[str, float]]:
    """Print and yield each world's ratio: the geometric mean, over the seeds, of the time of `progress` divided by the
    time of the best fixed choice."""
    matrix = cells([scenario(name) for name in WORLDS], SEEDS, out)
    engine = TaskEngine(processes=len(os.sched_getaffinity(0)))
    results = list(run_cells(matrix, simulate, Console(quiet=True), engine=engine))
    assert not [result.error for result in results if result.error]
    found = hindsights(read_trials("k", results, lambda trial: choice_columns(trial.summary)))
    for name, hindsight in zip(WORLDS, found, strict=True):
        progress, best = hindsight.standing("progress"), hindsight.best
        assert progress is not None and progress.ratios is not None and best is not None
        times = " ".join(f"{time_s:.2f}" for time_s in progress.times)
        others = " ".join(f"{time_s:.2f}" for time_s in best.times)
        print(f"{name:18} {progress.ratios.mean:.3f}  progress {times} s, {best.objective} {others} s")
        yield name, progress.ratios.mean
