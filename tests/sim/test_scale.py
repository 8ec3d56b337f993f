"""The simulation by iterations against the simulation by packets, with the same blocking; and its parts."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bench.scale_validity import COSTS
from kofn.sim.network import LATENCY_S
from kofn.sim.runner import command
from kofn.sim.scale.fleet import Ended, Fleet, Gradients
from kofn.sim.scale.network import ends
from kofn.sim.scale.simulation import JITTER_S, _Simulation, simulate_scale
from kofn.sim.scale.sums import OpenSums
from kofn.sim.times import ScaledTimes
from kofn_common.config.errors import ConfigError
from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.config.schema import Config
from kofn_controller.policy.worth import AGE
from tests.sim.lab import times

CONFIG = """
[run]
max_iterations = {iterations}
[network]
link_mbps = 100000
[job]
workers = {workers}
racks = {racks}
[policy]
late_gradient = "{rule}"
include_after = 0
[model]
compute_ms = 40
[[straggler]]
workers = "all"
mean_ms = 20
event_ms = 1
[[straggler]]
workers = "0-{last}:5"
mean_ms = 60
event_ms = 1
"""


def configured(
    more: str = "", *, workers: int = 12, racks: int = 1, rule: str = "stash", iterations: int = 600, scale: bool = True
) -> Config:
    text = CONFIG.format(workers=workers, racks=racks, rule=rule, iterations=iterations, last=workers - 1)
    return Config.parse(text + more, scale=scale)


def scaled(config: Config, name: str) -> ScaledTimes:
    return simulate_scale(config, name, lambda iteration, virtual_s: None)[0]


def both(config: Config, name: str) -> tuple[Any, ScaledTimes]:
    trial = replace(config, run=replace(config.run, trials=(name,)))
    return times(trial, COSTS), scaled(config, name)


FIELDS = ("mean_iteration_s", "q05_s", "q50_s", "q95_s")


def assert_alike(packets: Any, found: ScaledTimes, within: float, fields: tuple[str, ...] = FIELDS) -> None:
    for field in fields:
        assert getattr(found, field) == pytest.approx(getattr(packets, field), rel=within), field


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "k"),
    [
        pytest.param(rule, k, marks=() if k == 3 and rule not in ("drop", "abort") else pytest.mark.long)
        for rule in RULES
        for k in (3, 9)
    ],
)
def test_iterations_take_as_long_as_with_packets(rule: str, k: int) -> None:
    packets, found = both(configured(), f"{rule}:{k}")
    if (rule, k) == ("async", 3):
        assert_alike(packets, found, 0.02, FIELDS[:1])
    else:
        assert_alike(packets, found, 0.02)
    assert (found.k, found.late_gradient) == (k, rule)


@pytest.mark.slow
def test_all_wait_for_the_last() -> None:
    packets, found = both(configured(), "all")
    assert_alike(packets, found, 0.002)
    assert (found.gradients, found.age) == (12, 0)


@pytest.mark.slow
def test_same_k_is_chosen() -> None:
    packets, found = both(configured(iterations=200), "throughput")
    assert abs(found.k - packets.k) <= 1
    assert_alike(packets, found, 0.02)
    assert found.changes
    assert found.predicted_s == pytest.approx(found.q50_s, rel=0.1)


@pytest.mark.slow
def test_rule_is_chosen_by_the_model_of_learning() -> None:
    fast, slow = (
        scaled(configured(f"[scale]\ncorrelation = {length}\n", rule="auto", iterations=100), "progress")
        for length in (0.6, 25)
    )
    assert (fast.late_gradient, slow.late_gradient) == ("batch-sync", "async")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stash:9", pytest.param("abort:12", marks=pytest.mark.long)])
def test_tree_takes_as_long_as_with_packets(name: str) -> None:
    packets, found = both(configured(racks=4), name)
    assert_alike(packets, found, 0.01)


@pytest.mark.parametrize(("k", "transfer_s"), [(3, 0.008), (4, 0.08)])
def test_slow_link_delays_its_worker_alone(k: int, transfer_s: float) -> None:
    """A gradient of 0.1 MB takes 8 ms on 100 Mbit/s, and 80 ms on 10."""
    links = "[network]\nlink_mbps = 100\n[[link]]\nworkers = [2]\nmbps = 10\nat_iteration = 1\n"
    config = Config.parse(f"{links}[scale]\ngradient_mb = 0.1\noverhead_ms = 3\n[run]\nmax_iterations = 20\n")
    found = scaled(config, f"abort:{k}")
    assert found.q95_s == pytest.approx(0.01 + transfer_s + 0.003 + 2 * LATENCY_S, abs=JITTER_S)


@pytest.mark.slow
def test_controller_sees_the_slow_link_and_the_model_of_learning() -> None:
    links = "[[link]]\nworkers = [3]\nmbps = 10\nat_iteration = 1\n[network]\nlink_mbps = 1000\n"
    text = CONFIG.format(workers=12, racks=1, rule="merge", iterations=60, last=11).replace(
        "[network]\nlink_mbps = 100000\n", ""
    )
    config = Config.parse(f"{text}{links}[scale]\ngradient_mb = 0.1\nnoise_scale = 5\ncorrelation = 4\n")
    simulation = _Simulation(config=config, seeds=[1], adaptive=True)
    simulation.run(lambda iteration, virtual_s: None)
    loop = simulation.loop
    assert loop.links.delays_s[3] == pytest.approx(0.08 - 0.0008, rel=1e-6)
    assert np.count_nonzero(loop.links.delays_s) == 1
    assert loop.worth_model.noise_scale == pytest.approx(5, rel=0.05)
    assert loop.worth_model.correlation.length == pytest.approx(4, rel=0.2)


@pytest.mark.slow
def test_seeds_side_by_side_are_those_one_by_one() -> None:
    config = configured('[[shock]]\nworkers = "0-3"\nblocking_ms = 30\nfor_ms = 200\nshare = 0.3\n', iterations=80)
    three = replace(config, run=replace(config.run, seeds=3))
    for name in ("async:7", "batch-sync:7", "throughput"):
        found = simulate_scale(three, name, lambda iteration, virtual_s: None)
        for one in found:
            alone = scaled(replace(config, run=replace(config.run, seed=one.seed)), name)
            assert {**one.to_dict(), "wall_s": 0} == {**alone.to_dict(), "wall_s": 0}
        assert len({one.mean_iteration_s for one in found}) == 3


def test_iteration_ends_with_a_share_of_the_racks() -> None:
    config = configured("[scale]\nrack_share = 0.5\n", workers=8, racks=4)
    points = np.array([[1, 9, 2, 8, 3, 7, 4, 6]], np.float64)
    assert ends(config, np.array([2]), points) == 2, "two racks must have one worker each"
    assert ends(config, np.array([4]), points) == 7, "two racks must have two workers each"
    assert ends(configured(workers=8, racks=4), np.array([4]), points) == 4
    assert ends(configured(workers=8), np.array([3, 8]), points.repeat(2, axis=0)).tolist() == [[3], [9]]


def ended(included: list[int], old: list[int], begun_in: list[int]) -> Ended:
    """Return an iteration of one seed with these masks, and the iterations of the old gradients."""
    zeros = np.zeros((1, len(old)))
    return Ended(
        length_s=zeros[:, :1],
        included=np.array([included], np.bool_),
        given_up=zeros.astype(np.bool_),
        latest=Gradients(begun_in=np.array([begun_in]), took_s=zeros),
        old=np.array([old], np.bool_),
        before=Gradients(begun_in=np.array([begun_in]), took_s=zeros),
        old_s=zeros,
        more=np.zeros(1, np.int64),
    )


@pytest.mark.parametrize(
    ("rule", "gradients", "age"), [("merge", 3, 4 / 3), ("stash", 2, 0), ("drop", 2, 0), ("async", 3, 8 / 3)]
)
def test_sum_has_the_gradients_of_its_rule(rule: str, gradients: float, age: float) -> None:
    sums = OpenSums(shape=(1, 3))
    begun_in = [10, 6, 6] if rule == "async" else [10, 10, 6]
    first = sums.add(ended([1, 1, 0], [0, 0, 1], begun_in), 10, RULES[rule], LatePolicy(RULES[rule].name, 1.0))
    assert (first.gradients[0], first.age[0]) == (gradients, pytest.approx(age))
    if rule == "stash":
        later = sums.add(ended([0, 0, 1], [0, 0, 0], [12, 12, 12]), 12, RULES[rule], LatePolicy(RULES[rule].name, 0.5))
        assert later.gradients[0] == 2
        weight = 1 / 16  # of a gradient that is six iterations old, at least
        assert later.age[0] == pytest.approx(6 * weight / (1 + weight))
        assert later.effective[0] == pytest.approx((1 + weight) ** 2 / (1 + weight**2))


def test_progress_follows_the_noise_scale_and_the_age() -> None:
    config = configured("[scale]\nnoise_scale = 6\ncorrelation = 5\n", iterations=200)
    found, fresh = scaled(config, "async:4"), scaled(config, "all")
    assert fresh.progress_per_s == pytest.approx(1 / (1 + 6 / 12) / fresh.mean_iteration_s)
    assert found.age > 0.5
    most = math.exp(-AGE * found.age / 5) / (1 + 6 / 4) / found.mean_iteration_s
    assert most * 0.9 < found.progress_per_s < most * 1.2


def test_worker_that_gave_up_three_times_finishes_its_gradient() -> None:
    fleet, took_s = Fleet(shape=(1, 2), overhead_s=0.0, way_s=0.0), np.array([[1.0, 3.5]])
    seen = [
        fleet.iterate(at, RULES["abort"], lambda begun_s, batch: took_s, lambda points: points.min(axis=1)[:, None])
        for at in range(1, 9)
    ]
    assert [bool(each.given_up[0, 1]) for each in seen] == [True] * 3 + [False] * 5
    assert [bool(each.old[0, 1]) for each in seen] == [False] * 6 + [True, False]
    assert all(each.included[0, 0] for each in seen)


def written(folder: Path, text: str) -> str:
    (folder / "large.toml").write_text(text)
    return str(folder / "large.toml")


@pytest.mark.slow
def test_command_simulates_thousands_of_workers_in_racks(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG.format(workers=20_000, racks=400, rule="stash", iterations=20, last=19_999))
    done = CliRunner().invoke(command, [path, "--scale", "--json", "--trial", "fixed:18000", "--set", "run.seeds=2"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(one["seed"], one["k"], one["workers"], one["racks"]) for one in found] == [
        (seed, 18_000, 20_000, 400) for seed in (1, 2)
    ]
    shown = CliRunner().invoke(command, [path, "--scale", "--quiet", "--set", "run.max_iterations=3"])
    assert "20,000" in shown.stdout
    refused = CliRunner().invoke(command, [path, "--times"])
    assert refused.exit_code == 2 and "job.racks must be 1 to 16, got 400" in refused.output


@pytest.mark.parametrize(
    ("more", "options", "words"),
    [
        ("", ["--times"], "--scale and --times must not both be given"),
        ("", ["--cores", "0"], "--scale and --cores must not both be given"),
        ("[[fault]]\ndrop = 0.1\n", [], "fault and --scale must not both be given"),
        ("", ["--trial", "fixed:13"], "--trial must be"),
        ("[[cpu]]\nworkers = [0]\nshare = 0.5\n", [], "cpu.share is not simulated"),
    ],
)
def test_command_refuses_what_is_not_simulated(tmp_path: Path, more: str, options: list[str], words: str) -> None:
    path = written(tmp_path, CONFIG.format(workers=12, racks=1, rule="stash", iterations=2, last=11) + more)
    done = CliRunner().invoke(command, [path, "--scale", *options])
    assert done.exit_code == 2
    assert words in done.output


def test_switches_limit_a_run() -> None:
    with pytest.raises(ConfigError, match=r"job.workers must be 1 to 64 with job.racks = 1, got 65"):
        configured(workers=65, scale=False)
    assert configured(workers=65).job.workers == 65


def test_objective_changes_at_an_event() -> None:
    config = configured('[[event]]\nat_iteration = 50\nobjective = "fixed:4"\n', iterations=100)
    found = scaled(config, "all")
    assert (found.k, found.changes) == (4, 1)
    assert found.q05_s < 0.8 * found.q95_s
