"""Iteration times of a simulation in which only blocking takes time, against the event-by-event process; and costs."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kofn.sim.costs import Costs
from kofn.sim.network import FRAME_BYTES
from kofn_common.config.late_rules import RULES
from kofn_common.config.schema import Config
from kofn_common.wire.packet import HEADER_BYTES
from kofn_host.workload.stragglers.drawn import Drawn
from tests.controller.slow import process, seen
from tests.sim.lab import COSTS, FREE, times

WAY_MS = 0.1
"""A round trip, with no time on the link."""

CONFIG = """
[run]
trials = ["{objective}"]
max_iterations = {iterations}
[network]
link_mbps = 100000
[job]
workers = {workers}
[policy]
late_gradient = "stash"
include_after = 0
[model]
compute_ms = {compute_ms}
"""


def blocked(
    folder: Path, means: list[float], *, objective: str, compute_ms: float = 40, iterations: int = 1000
) -> Config:
    """Return a configuration of workers with these mean numbers of 1 ms events; a coarser unit
    would cause many ties.
    """
    stragglers = "".join(
        f"[[straggler]]\nworkers = [{rank}]\nmean_ms = {mean}\nevent_ms = 1\n" for rank, mean in enumerate(means)
    )
    path = folder / "blocked.toml"
    text = CONFIG.format(objective=objective, workers=len(means), compute_ms=compute_ms, iterations=iterations)
    path.write_text(text + stragglers)
    return Config.load(path)


ONE_SLOW, GRADED, ALIKE = ([9.0] * 3 + [90.0], 30.0), ([0.3, 10.0, 30.0, 30.0, 50.0], 20.0), ([40.0] * 6, 5.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "k", "means", "compute_ms"),
    [
        pytest.param("stash", 1, *ONE_SLOW, marks=pytest.mark.long),
        pytest.param("stash", 1, *ALIKE, marks=pytest.mark.long),
        pytest.param("stash", 2, *GRADED, marks=pytest.mark.long),
        pytest.param("stash", 4, *ONE_SLOW, marks=pytest.mark.long),
        pytest.param("stash", 4, *ALIKE, marks=pytest.mark.long),
        pytest.param("merge", 2, *ONE_SLOW, marks=pytest.mark.long),
        ("merge", 2, *GRADED),
        pytest.param("async", 1, *GRADED, marks=pytest.mark.long),
        ("async", 3, *ONE_SLOW),
        pytest.param("async", 3, *ALIKE, marks=pytest.mark.long),
    ],
)
def test_iterations_take_as_long_as_in_the_process(
    tmp_path: Path, rule: str, k: int, means: list[float], compute_ms: float
) -> None:
    config = blocked(tmp_path, means, objective=f"{rule}:{k}", compute_ms=compute_ms)
    found = times(config)
    made = process(rule, means, k, service=compute_ms, seed=1, overhead=WAY_MS, unheard=True)
    slow = seen(made, len(means), iterations=12000)
    assert 1e3 * found.mean_iteration_s == pytest.approx(slow.mean + WAY_MS, rel=0.02)
    assert slow.error < 0.003 * slow.mean
    assert (found.k, found.iterations) == (k, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("k", [pytest.param(1, marks=pytest.mark.long), 3])
def test_late_workers_continue_during_the_overhead(tmp_path: Path, k: int) -> None:
    """An iteration's mean is that of the process with this overhead: apply_s once each."""
    means, apply_s = [5.0, 20.0, 40.0, 80.0], 0.023
    costs = replace(FREE, apply_s=apply_s)
    found = times(blocked(tmp_path, means, objective=f"fixed:{k}"), costs)
    made = process("stash", means, k, service=40.0, seed=1, overhead=1e3 * apply_s + WAY_MS)
    slow = seen(made, len(means), iterations=6000).mean
    assert 1e3 * found.mean_iteration_s == pytest.approx(slow + 1e3 * apply_s + WAY_MS, rel=0.03)


def test_all_wait_for_the_slowest_of_the_same_draws(tmp_path: Path) -> None:
    """With k = n and one worker blocked more than the others, the time is the sum of the longest times."""
    config = blocked(tmp_path, [10.0, 20.0, 60.0], objective="all", iterations=200)
    blocking = [Drawn(config, rank) for rank in range(3)]
    longest = [max(worker.blocking_s(i) for worker in blocking) for i in range(1, 201)]
    expected = 0.040 + float(np.mean(longest))
    assert times(config).mean_iteration_s == pytest.approx(expected, abs=3e-4)


@pytest.mark.slow
def test_given_up_gradients_delay_no_worker(tmp_path: Path) -> None:
    config = blocked(tmp_path, [10.0, 10.0, 300.0], objective="fixed:2", iterations=400)
    blocking = [Drawn(config, rank) for rank in range(3)]
    second = [sorted(worker.blocking_s(i) for worker in blocking)[1] for i in range(1, 401)]
    gives_up = times(replace(config, policy=replace(config.policy, late_gradient="abort")))
    assert gives_up.mean_iteration_s == pytest.approx(0.040 + float(np.mean(second)), abs=1e-3)


@pytest.mark.slow
def test_rules_take_the_time_of_their_gradients(tmp_path: Path) -> None:
    """A worker that finishes a late gradient begins late; one that gives up begins with the others."""
    config = blocked(tmp_path, [20.0, 40.0, 80.0, 80.0], objective="fixed:3", iterations=400)
    mean = {
        rule: times(replace(config, policy=replace(config.policy, late_gradient=rule))).mean_iteration_s
        for rule in RULES
    }
    assert mean["merge"] == mean["stash"] == mean["drop"], "merge, stash and drop must have the same times"
    assert mean["async"] < 0.8 * mean["merge"], "async must be faster, because late gradients count among the k"
    assert mean["abort"] < 0.98 * mean["merge"], "abort must be faster, because no worker finishes late gradients"
    assert mean["batch-sync"] < mean["abort"], "batch-sync must be faster, because no worker waits"


@pytest.mark.slow
def test_prediction_equals_the_simulated_time(tmp_path: Path) -> None:
    for means in ([10.0, 10.0, 10.0, 120.0], [40.0] * 6):
        config = blocked(tmp_path, means, objective="fixed:2", iterations=500)
        found = times(config, replace(COSTS, cores=0, decide_s=0.02))
        # the prediction is the last window's
        assert found.predicted_s == pytest.approx(found.mean_iteration_s, rel=0.15)


@pytest.mark.slow
def test_costs_take_time_and_fewer_cores_take_more(tmp_path: Path) -> None:
    config = blocked(tmp_path, [5.0] * 8, objective="all", compute_ms=2, iterations=200)
    dear = Costs(
        cores=0,
        wake_s=0.0,
        encode_s=0.002,
        packet_s=0.0001,
        switch_s=0.0,
        apply_s=0.002,
        report_s=0.0005,
        take_s=0.0,
        decide_s=0.001,
    )
    free, own, four, one = (
        times(config, costs).mean_iteration_s for costs in (FREE, dear, replace(dear, cores=4), replace(dear, cores=1))
    )
    assert own == pytest.approx(free + 0.002 + 0.002 + 2 * 0.0001, abs=4e-4)
    assert own < four < one
    assert one > 8 * (0.002 + 0.002)


@pytest.mark.slow
def test_slow_link_sets_the_pace(tmp_path: Path) -> None:
    """One packet an iteration takes longer than the 40 ms of computation."""
    config = blocked(tmp_path, [0.0, 0.0], objective="all", iterations=1000)
    slow = times(replace(config, network=replace(config.network, link_mbps=0.05)))
    assert slow.mean_iteration_s == pytest.approx((HEADER_BYTES + 256 + FRAME_BYTES) * 8e-6 / 0.05, rel=0.01)


def test_one_iteration_is_measured(tmp_path: Path) -> None:
    found = times(blocked(tmp_path, [10.0], objective="throughput", iterations=1))
    assert found.iterations == 1
    assert 0.040 < found.mean_iteration_s < 0.120
    assert found.predicted_s == pytest.approx(found.mean_iteration_s), "the prediction must be exact after one report"


@pytest.mark.slow
def test_frequent_decisions_take_only_their_permitted_time(tmp_path: Path) -> None:
    """A decision of 50 ms leaves a second to other tasks."""
    means = [2.0, 2.0, 2.0, 90.0]
    config = blocked(tmp_path, means, objective="throughput", iterations=300)
    quick, slow = (times(config, replace(FREE, decide_s=decide_s)) for decide_s in (0.001, 0.5))
    assert quick.k == slow.k == 3
    assert quick.mean_iteration_s < slow.mean_iteration_s, "later decisions must cost time"
