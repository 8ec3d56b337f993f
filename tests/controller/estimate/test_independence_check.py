"""Workers that do not block independently are found, and then the times of whole iterations are used."""

import numpy as np
import pytest

from bench.laws import WINDOW, WORLDS, cut_off, times
from bench.racks import RackWorld
from kofn_controller.estimate.independence_check import independence_chance
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.model import Estimate, fit
from kofn_controller.policy.draws import law_times
from kofn_controller.policy.expected_time import expected_times

EVERYONE = np.ones(8, np.bool_)
ITERATIONS = np.tile(np.arange(1, WINDOW + 1), (8, 1))


def windows(name: str, count: int, k: int = 8) -> list[Estimate]:
    random = np.random.default_rng(3)
    return [fit(*cut_off(times(WORLDS[name], random, (8, WINDOW)), k), None, ITERATIONS) for _ in range(count)]


def truth(name: str) -> FloatArray:
    return np.asarray(np.sort(times(WORLDS[name], np.random.default_rng(4), (8, 40_000)), axis=0).mean(axis=1))


@pytest.mark.parametrize("k", [8, 6])
@pytest.mark.parametrize("name", ["a shock common to all", "halves take turns"])
def test_common_blocking_is_found(name: str, k: int) -> None:
    found = windows(name, 20, k)
    assert [each.law for each in found].count("bootstrap") >= 19
    assert "do not block independently" in found[0].reason


def test_common_shock_is_in_the_first_and_the_last_workers_time() -> None:
    real, found = truth("a shock common to all"), windows("a shock common to all", 60)
    poisson = [expected_times(each, EVERYONE) for each in found]
    used = [law_times(each, EVERYONE, own) for each, own in zip(found, poisson, strict=True)]
    off = np.mean(used, axis=0) / real - 1
    assert np.abs(off).max() < 0.03
    alone = np.mean(poisson, axis=0) / real - 1
    assert alone[0] < -0.3, "the fastest of three independent workers would hardly ever be blocked"
    assert alone[-1] > 0.25


def rack_windows(world: str, count: int, k: int, racks: int) -> list[Estimate]:
    """Return estimates of 16 workers in four racks, of which the estimator knows `racks`."""
    setting = RackWorld(world=world, racks=4, size=4)
    times_s = np.concatenate([setting.drawn_s(seed) for seed in range(1, 1 + -(-count // 16))])
    windows_s = times_s.reshape(-1, 16)[: WINDOW * count].reshape(count, WINDOW, 16).swapaxes(1, 2)
    iterations = np.tile(np.arange(1, WINDOW + 1), (16, 1))
    return [fit(*cut_off(window_s, k), None, iterations, racks=racks) for window_s in windows_s]


def test_racks_that_are_slow_as_a_whole_are_in_the_expected_times() -> None:
    setting, everyone = RackWorld(world="each rack, 15 %", racks=4, size=4), np.ones(16, np.bool_)
    times_s = np.concatenate([setting.drawn_s(seed) for seed in range(1, 21)]).reshape(-1, 16)
    real, found = np.sort(times_s, axis=1).mean(axis=0), rack_windows("each rack, 15 %", 40, 16, 4)
    assert [each.law for each in found].count("bootstrap") >= 38
    alone = np.array([expected_times(each, everyone) for each in found])
    used = np.array([law_times(each, everyone, own) for each, own in zip(found, alone, strict=True)])
    assert np.abs(used.mean(axis=0) / real - 1).max() < 0.05
    assert np.abs(alone.mean(axis=0) / real - 1).max() > 0.2


@pytest.mark.slow
def test_known_racks_are_found_slow_although_their_times_are_cut_off() -> None:
    known, unknown = (
        [each.law for each in rack_windows("one rack, 30 %", 40, 12, racks)].count("bootstrap") for racks in (4, 1)
    )
    assert known >= 24
    assert unknown <= 16


@pytest.mark.slow
def test_racks_of_independent_workers_are_called_independent() -> None:
    assert [each.law for each in rack_windows("no rack", 80, 12, 4)].count("bootstrap") <= 4


def test_faint_blocking_common_to_racks_of_many_workers_is_found() -> None:
    """Only 64 workers are tested, in each rack as many."""
    random, n = np.random.default_rng(8), 1024
    counts = random.poisson(2.0, (n, WINDOW)).astype(np.float64)
    counts += np.repeat(random.poisson(0.5, (16, WINDOW)), 64, axis=0)
    iterations, none = np.tile(np.arange(1, WINDOW + 1), (n, 1)), np.zeros(counts.shape, np.bool_)
    assert independence_chance(counts, none, iterations, np.full(n, 2.5), 2.0, 16) <= 0.01
    assert independence_chance(counts, none, iterations, np.full(n, 2.5), 2.0) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("k", [8, pytest.param(6, marks=pytest.mark.long), 2])
@pytest.mark.parametrize("name", ["Poisson, 0.5 to 20", "Poisson, all alike, 4", "alike, exponential"])
def test_independent_workers_are_called_independent(name: str, k: int) -> None:
    assert [each.law for each in windows(name, 100, k)].count("bootstrap") <= 5  # 1 of 100 is expected


def test_p_value_of_independent_workers_is_uniform() -> None:
    random, rates = np.random.default_rng(5), np.full(8, 4.0)
    none = np.zeros((8, WINDOW), np.bool_)
    found = [
        independence_chance(random.poisson(4.0, none.shape).astype(np.float64), none, ITERATIONS, rates, 2.0)
        for _ in range(200)
    ]
    assert np.mean(np.array(found) <= 0.1) < 0.16
    assert 0.3 < np.median(found) < 1


def test_few_iterations_give_no_verdict() -> None:
    random = np.random.default_rng(6)
    counts, none = np.tile(random.poisson(4.0, 7).astype(np.float64), (8, 1)), np.zeros((8, 7), np.bool_)
    assert independence_chance(counts, none, ITERATIONS[:, :7], np.full(8, 4.0), 2.0) == 1


def test_late_worker_is_compared_with_the_iteration_in_which_it_began() -> None:
    """The shocks are the same, but the last worker begins in every third iteration only, so its rows have gaps."""
    random = np.random.default_rng(7)
    shocks = 0.005 * random.poisson(4.0, 48)
    iterations = np.tile(np.arange(33, 49), (4, 1))
    iterations[3] = np.arange(3, 51, 3)
    times_s = 0.010 + shocks[iterations - 1] + 0.005 * random.poisson(0.3, (4, 16))
    found = fit(times_s, np.zeros(times_s.shape, np.bool_), None, iterations)
    assert found.law == "bootstrap"
    assert found.rows is not None
    assert found.rows.shape == (4, 16)
    assert np.isfinite(found.rows).all()
