"""Each worker is tested against the others, and the estimate uses the result."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from kofn_controller.estimate.dispersion_check import poisson_fits
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.model import fit
from kofn_controller.estimate.poisson import HAZARDS, hazard, imputed, poisson_done
from kofn_controller.policy.expected_time import done_by

EVERYONE = np.ones(8, dtype=np.bool_)
EVENT_S = 0.005


def among_poisson(blocking_s: FloatArray, seed: int = 1) -> FloatArray:
    """Return times (8, window) of seven Poisson workers and one with this blocking."""
    random = np.random.default_rng(seed)
    means = np.geomspace(0.5, 20, 7)[:, None]
    times_s = 0.010 + EVENT_S * random.poisson(means, (7, len(blocking_s)))
    return np.vstack((times_s, 0.010 + blocking_s))


def uncut(times_s: FloatArray) -> np.typing.NDArray[np.bool_]:
    return np.zeros(times_s.shape, dtype=np.bool_)


@pytest.mark.parametrize(
    "blocking_s",
    [np.full(16, 0.020), 0.100 * (np.arange(16) % 5 == 0), 1.0 * (np.arange(16) == 7)],
    ids=["constant", "rarely very long", "one pause"],
)
def test_only_the_worker_that_is_not_poisson_is_found(blocking_s: FloatArray) -> None:
    times_s = among_poisson(blocking_s, seed=2)
    found = fit(times_s, uncut(times_s))
    assert found.poisson.tolist() == [True] * 7 + [False]
    assert found.curves.rank.tolist() == [7]
    assert found.event_s == pytest.approx(EVENT_S, rel=0.4)


@pytest.mark.slow
def test_few_poisson_windows_are_rejected() -> None:
    alarms = 0
    for seed in range(200):
        times_s = among_poisson(EVENT_S * np.random.default_rng(1000 + seed).poisson(4.0, 16).astype(np.float64), seed)
        alarms += int(np.sum(~fit(times_s, uncut(times_s)).poisson))
    assert alarms <= 0.01 * 200 * 8


def test_worker_that_is_often_cut_off_is_not_called_odd() -> None:
    random = np.random.default_rng(3)
    alarms = 0
    for seed in range(100):
        times_s = among_poisson(EVENT_S * random.poisson(8.0, 16).astype(np.float64), seed)
        cut = uncut(times_s)
        cut[7] = times_s[7] > 0.045  # only the smaller half is seen, and its variance alone is far below its mean
        alarms += not fit(np.minimum(times_s, 0.045 * cut + 9.0 * ~cut), cut).poisson[7]
    assert alarms <= 3


def test_worker_without_others_is_not_called_odd() -> None:
    assert poisson_fits(np.array([9.0]), np.array([1.0]), np.array([4.0]), np.array([False])).all()
    assert poisson_fits(np.array([0.0, 9.0]), np.zeros(2), np.zeros(2), np.zeros(2, dtype=np.bool_)).all()


def test_at_most_half_of_the_workers_are_called_odd() -> None:
    random = np.random.default_rng(1)
    found = poisson_fits(random.exponential(50, 8) ** 3, np.full(8, 5.0), np.full(8, 50.0), np.zeros(8, dtype=np.bool_))
    assert 4 <= found.sum() < 8


def test_estimate_uses_a_workers_own_distribution() -> None:
    times_s = among_poisson(0.100 * (np.arange(16) % 5 == 0))  # 4 of 16
    found = fit(times_s, uncut(times_s))
    events = np.arange(int(found.curves.longest.max()) + 60, dtype=np.float64)
    done = done_by(found, EVERYONE, events)
    assert done.shape == (8, len(events))
    np.testing.assert_allclose(done[:7], stats.poisson.cdf(events, found.lambda_s[:7, None] / found.event_s), atol=1e-9)
    assert done[7, 1] == pytest.approx(12 / 16)
    assert np.sum(1 - done[7]) * found.event_s == pytest.approx(found.lambda_s[7], rel=1e-6)
    live = np.arange(8) >= 6
    np.testing.assert_array_equal(done_by(found, live, events), done[6:])
    assert found.curves.longest[0] == pytest.approx(0.100 / found.event_s, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "least"), [("rarely very long", 0.85), ("constant", 0.9)])
def test_interval_of_a_worker_that_is_not_poisson_uses_its_own_variance(shape: str, least: float) -> None:
    random, covered, widths = np.random.default_rng(5), 0, []
    for seed in range(100):
        rare = 0.100 * (random.random(64) < 0.2).astype(np.float64)
        times_s = among_poisson(rare if shape == "rarely very long" else np.full(64, 0.020), seed)
        found = fit(times_s, uncut(times_s))
        covered += bool(found.low_s[7] <= 0.020 <= found.high_s[7])
        widths.append(found.high_s[7] - found.low_s[7])
    assert covered / 100 >= least
    poisson = 2 * 1.96 * np.sqrt(EVENT_S * 0.020 / 64)
    assert np.median(widths) > 3 * poisson if shape == "rarely very long" else np.median(widths) < 0.5 * poisson


def test_silence_longer_than_any_before_changes_the_distribution() -> None:
    times_s = among_poisson(0.100 * (np.arange(16) % 5 == 0))
    for silent_s, own in ((0.05, True), (0.5, False)):
        found = fit(times_s, uncut(times_s), np.where(np.arange(8) == 7, silent_s, 0.0))
        assert (7 in found.curves.rank) is own
        assert not found.poisson[7]
    before = done_by(fit(times_s, uncut(times_s)), EVERYONE, np.arange(4.0))[7]
    assert (done_by(found, EVERYONE, np.arange(4.0))[7] < before).all()


@given(st.integers(1, 30), st.floats(0.1, 40))
@pytest.mark.slow
def test_imputed_moments_are_the_truncated_poissons(bound: int, rate: float) -> None:
    counts, cut = np.array([[float(bound), 2.0]]), np.array([[True, False]])
    mean, variance = imputed(counts, cut, np.array([rate]))
    events = np.arange(400)
    chances = np.where(
        events >= bound, np.exp(stats.poisson.logpmf(events, rate) - stats.poisson.logsf(bound - 1, rate)), 0
    )
    expected = chances @ events
    assert mean[0, 0] == pytest.approx(expected, rel=1e-6)
    assert variance[0, 0] == pytest.approx(chances @ (events - expected) ** 2, rel=1e-4, abs=1e-6)
    assert (mean[0, 1], variance[0, 1]) == (2, 0)


@given(st.integers(0, 300), st.floats(1e-3, 400))
@example(200, 3.0)
@example(1500, 400.0)
def test_hazards_are_the_same_from_the_table(count: int, rate: float) -> None:
    counts, row = np.full(HAZARDS, float(count)), np.zeros(HAZARDS, np.int64)
    (few,), many = hazard(counts[:1], np.array([rate]), row[:1]), hazard(counts, np.array([rate]), row)
    np.testing.assert_allclose(many, few, atol=4e-4)
    exact = 1 / (1 + np.cumprod(rate / (count + np.arange(1, 3000))).sum())  # P(N >= m) in units of P(N = m)
    assert few == pytest.approx(exact, rel=1e-4)


@given(st.lists(st.floats(0, 3000), min_size=1, max_size=5), st.integers(0, 200), st.integers(0, 4000))
def test_probabilities_are_poissons(rates: list[float], near: int, far: int) -> None:
    events = np.unique(np.append(np.arange(near), [near + far, near + 2 * far]).astype(np.float64))
    found = poisson_done(events, np.array(rates))
    np.testing.assert_allclose(found, stats.poisson.cdf(events, np.array(rates)[:, None]), atol=1e-9)
