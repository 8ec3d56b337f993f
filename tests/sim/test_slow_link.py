"""Workers behind links of different rates: iteration times, the controller's estimate of the links,
and the chosen k.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kofn_common.config.schema import Config
from tests.sim.lab import COSTS, Trained

pytestmark = pytest.mark.slow

RUN = """
[run]
trials = ["{objective}"]
target = 1.0
evaluate_every = 1000
max_iterations = {iterations}
[job]
workers = 4
[model]
hidden = [256]
compute_ms = 10
learning_rate = 0.02
[[straggler]]
workers = [0, 1, 2, 3]
mean_ms = 1
"""

SLOW = """
[[link]]
workers = [3]
mbps = {mbps}
at_iteration = {iteration}
"""

ALIKE = """
[[straggler]]
workers = [0, 1, 2, 3]
mean_ms = 1
"""
LIMITED = """
[network]
link_mbps = 20
[policy]
age_weight = 1.0
[[straggler]]
workers = [0, 1, 2]
mean_ms = 1
[[straggler]]
workers = [3]
mean_ms = 30
"""

TAKES_LONG = """
[run]
trials = ["{objective}"]
target = 1.0
evaluate_every = 1000
max_iterations = {iterations}
seed = {seed}
[network]
link_mbps = 200
[job]
workers = {workers}
[policy]
include_after = 0
[model]
hidden = [512]
compute_ms = 10
learning_rate = 0.02
[[straggler]]
workers = {ranks}
mean_ms = 1
[[link]]
workers = {slow}
mbps = {mbps}
at_iteration = {at}
"""
"""A gradient takes 6 ms in a link of 200 Mbit/s, 31 ms at 40 and 250 ms at 5 Mbit/s; an iteration takes 25 ms without
the workers with slow links."""

GRADIENT_BYTES = 76 * (64 + 1024 + 42)


def run(folder: Path, objective: str, *links: tuple[float, int], iterations: int = 60) -> Trained:
    """Train; worker 3's link has these rates from these iterations on."""
    text = RUN.format(objective=objective, iterations=iterations)
    config = Config.parse(text + "".join(SLOW.format(mbps=mbps, iteration=iteration) for mbps, iteration in links))
    trained = Trained(config, folder / objective.replace(":", "-"), COSTS).run()
    trained.check()
    return trained


def mean_s(trained: Trained) -> float:
    """Return the mean time of the iterations in the second half, as worker 0 saw them."""
    ended_s = [line["time"] for line in lines(trained) if line["iteration"] >= trained.config.run.max_iterations // 2]
    return float(np.diff(ended_s).mean())


def lines(trained: Trained) -> list[dict[str, Any]]:
    read = map(json.loads, trained.entry.metrics(0).read_text().splitlines())
    return [line for line in read if "iteration" in line]


@pytest.mark.parametrize("mbps", [5.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_iteration_takes_as_long_as_the_slowest_link_needs_for_a_gradient(tmp_path: Path, mbps: float) -> None:
    """The link pays for all its bytes; its burst returns only after it has been idle for long enough."""
    assert mean_s(run(tmp_path, "all", (mbps, 1))) == pytest.approx(GRADIENT_BYTES * 8e-6 / mbps, rel=0.1)


@pytest.mark.parametrize("objective", [pytest.param("throughput", marks=pytest.mark.long), "progress"])
@pytest.mark.parametrize("mbps", [5.0, pytest.param(20.0, marks=pytest.mark.long)])
def test_worker_behind_a_slow_link_is_left_out(tmp_path: Path, mbps: float, objective: str) -> None:
    """This ends when the others have finished and worker 3 continues alone."""
    trained = run(tmp_path, objective, (mbps, 12))
    last = trained.config.run.max_iterations
    changes = [change for change in trained.simulation.controller.control_loop.changes if change.iteration < last]
    assert {line["k"] for line in lines(trained)[last // 2 :]} <= {2, 3}
    assert len([change for change in changes if change.k != change.previous_k and change.iteration > 22]) <= 2
    assert mean_s(trained) < 1.1 * mean_s(run(tmp_path, "fixed:3", (mbps, 12)))


@pytest.mark.parametrize(
    "rule",
    [
        "merge",
        *(pytest.param(rule, marks=pytest.mark.long) for rule in ("batch-sync", "stash", "drop", "async", "abort")),
    ],
)
def test_transfer_is_measured_under_every_rule(tmp_path: Path, rule: str) -> None:
    """Worker 3's gradients are late; at 40 Mbit/s their last packets exceed the bucket and wait."""
    control_loop = run(tmp_path, f"{rule}:3", (40.0, 1)).simulation.controller.control_loop
    assert control_loop.links.delays_s[:3].tolist() == [0, 0, 0]
    assert control_loop.links.delays_s[3] > 3e-3


@pytest.mark.parametrize("objective", ["merge:3", pytest.param("fixed:2", marks=pytest.mark.long)])
def test_late_workers_blocks_take_turns_on_links_that_limit_an_iteration(tmp_path: Path, objective: str) -> None:
    """The late worker's link carries a part of the blocks in time, in each iteration another part."""
    text = RUN.format(objective=objective, iterations=150)
    assert ALIKE in text
    trained = Trained(Config.parse(text.replace(ALIKE, LIMITED)), tmp_path / "out", COSTS).run()
    trained.check()
    account = trained.models[3].account()
    assert account.summed > 0.2 * account.entered > 10


@pytest.mark.parametrize(
    ("mbps", "workers", "at"),
    [
        (10.0, 4, 10),
        *(
            pytest.param(mbps, workers, at, marks=pytest.mark.long)
            for mbps, workers, at in [(40.0, 4, 10), (20.0, 4, 10), (5.0, 4, 1), (10.0, 8, 10), (40.0, 8, 10)]
        ),
    ],
)
def test_gradients_of_slow_links_enter_sums_that_do_not_wait_for_them(
    tmp_path: Path, mbps: float, workers: int, at: int
) -> None:
    """The links carry the weight of nearly all gradients, in fewer gradients' bytes."""
    slow = [3] if workers == 4 else [6, 7]
    text = TAKES_LONG.format(
        objective="source",
        iterations=120,
        seed=1,
        workers=workers,
        ranks=list(range(workers)),
        slow=slow,
        mbps=mbps,
        at=at,
    )
    trained = Trained(Config.parse(text), tmp_path / "out", COSTS).run()
    trained.check()
    control_loop, ks = trained.simulation.controller.control_loop, [line["k"] for line in lines(trained)[50:]]
    assert max(ks) <= workers - len(slow)
    blocks = trained.models[0].layout.blocks
    bytes_s = 8e-6 * blocks * (64 + 1024 + 42)
    for rank in slow:
        account = trained.models[rank].account()
        assert account.entered > 100
        assert account.discarded == 0
        assert account.waiting < 0.2 * account.entered
        assert control_loop.links.delays_s[rank] == pytest.approx(bytes_s / mbps - bytes_s / 200, rel=0.3, abs=0.02)
        assert trained.simulation.uplinks[rank].payload_bytes < 1.1 * 120 * blocks * (64 + 1024)


def test_equal_links_add_nothing(tmp_path: Path) -> None:
    control_loop = run(tmp_path, "throughput").simulation.controller.control_loop
    assert np.isfinite(control_loop.measurements.link_waits_s).all()
    assert control_loop.links.delays_s.tolist() == [0, 0, 0, 0]


def test_workers_that_share_a_servers_link_have_no_slow_links(tmp_path: Path) -> None:
    """Each worker's window is less than half of its gradient, and the workers' bursts coincide."""
    text = RUN.format(objective="all", iterations=12).replace("hidden = [256]", "hidden = [512]")
    shared = text.replace("workers = 4", 'workers = 4\ncollective = "server"', 1) + "[network]\nlink_mbps = 40\n"
    control_loop = Trained(Config.parse(shared), tmp_path / "out", COSTS).run().simulation.controller.control_loop
    assert np.nanmax(control_loop.measurements.link_waits_s) < 5e-3
    assert not control_loop.links.slow.any()


@pytest.mark.long
def test_link_that_recovers_is_awaited_again(tmp_path: Path) -> None:
    trained = run(tmp_path, "throughput", (10.0, 8), (200.0, 40), iterations=220)
    control_loop = trained.simulation.controller.control_loop
    ks = {change.iteration: change.k for change in control_loop.changes}
    assert 3 in ks.values()
    assert control_loop.k == 4
    assert control_loop.links.delays_s[3] < 5e-3, "an equal link must add almost nothing"
