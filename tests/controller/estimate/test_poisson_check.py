"""The absolute test finds equal workers that are not Poisson, and accepts Poisson ones."""

import numpy as np
import pytest

from bench.laws import WORLDS
from kofn_controller.estimate.model import fit
from kofn_controller.policy.draws import law_times
from kofn_controller.policy.expected_time import expected_times
from tests.controller.estimate.test_independence_check import EVERYONE, truth, windows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alike, exponential", "alike, Pareto 2", "bursts"])
def test_equal_workers_that_are_not_poisson_are_found(name: str) -> None:
    found, real = windows(name, 40), truth(name)
    assert [each.law for each in found].count("empirical") >= 25
    poisson = [expected_times(each, EVERYONE) for each in found]
    used = [law_times(each, EVERYONE, own) for each, own in zip(found, poisson, strict=True)]
    off, alone = (np.abs(np.mean(each, axis=0) / real - 1)[:-1] for each in (used, poisson))
    assert off.max() < 0.13
    assert off.max() < 0.6 * alone.max()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WORLDS if name.startswith("Poisson")])
def test_poisson_windows_are_accepted(name: str) -> None:
    found = windows(name, 60) + windows(name, 60, k=6)
    laws = [each.law for each in found]
    assert laws.count("empirical") <= 3
    assert laws.count("poisson") >= 114
    assert sum(bool((~each.poisson).any()) for each in found) <= 3


def test_change_of_level_is_not_taken_for_another_law() -> None:
    random = np.random.default_rng(1)
    laws = []
    for _ in range(40):
        rates = np.where((np.arange(8)[:, None] == 3) & (np.arange(16) >= 8), 4.0, 0.2)
        times_s = 0.010 + 0.005 * random.poisson(rates).astype(np.float64)
        laws.append(fit(times_s, np.zeros(times_s.shape, np.bool_)).law)
    assert laws.count("poisson") >= 36


def test_recently_tested_window_is_not_tested_again() -> None:
    random = np.random.default_rng(2)
    cut = np.zeros((8, 16), np.bool_)
    times_s = 0.010 + random.exponential(0.020, cut.shape)
    first = fit(times_s, cut, None, np.tile(np.arange(1, 17), (8, 1)))
    assert (first.law, first.tested) == ("empirical", 16)
    poisson = 0.010 + 0.005 * random.poisson(4.0, cut.shape).astype(np.float64)
    kept = fit(poisson, cut, None, np.tile(np.arange(8, 24), (8, 1)), first)
    assert (kept.law, kept.tested) == ("empirical", 16)
    assert kept.own is not None
    refitted = fit(poisson, cut, None, np.tile(np.arange(9, 25), (8, 1)), first)
    assert (refitted.law, refitted.tested, refitted.own) == ("poisson", 24, None)
    np.testing.assert_allclose(refitted.lambda_s, fit(poisson, cut).lambda_s, rtol=1e-3)
