"""The test of the fit, a worker's own distribution, and what the estimate makes of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from controller.goodness import Curve, curve, poisson_fits
from controller.measure import FloatArray
from controller.model import fit
from controller.poisson import imputed, poisson_done

EVERYONE = np.ones(8, dtype=np.bool_)
EVENT_S = 0.005


def among_poisson(blocking_s: FloatArray, seed: int = 1) -> FloatArray:
    """Times (8, window) of seven workers that are Poisson's and one that blocks like this."""
    random = np.random.default_rng(seed)
    means = np.geomspace(0.5, 20, 7)[:, None]
    times_s = 0.010 + EVENT_S * random.poisson(means, (7, len(blocking_s)))
    return np.vstack((times_s, 0.010 + blocking_s))


def uncut(times_s: FloatArray) -> np.typing.NDArray[np.bool_]:
    return np.zeros(times_s.shape, dtype=np.bool_)


@pytest.mark.parametrize(
    "blocking_s",
    [np.full(16, 0.020), 0.100 * (np.arange(16) % 5 == 0), 1.0 * (np.arange(16) == 7)],
    ids=["always the same", "now and then very long", "one pause"],
)
def test_what_is_not_poisson_is_found_and_no_one_else_is_blamed(blocking_s: FloatArray) -> None:
    times_s = among_poisson(blocking_s, seed=2)
    found = fit(times_s, uncut(times_s))
    assert found.poisson.tolist() == [True] * 7 + [False]
    assert list(found.curves) == [7]
    assert found.event_s == pytest.approx(EVENT_S, rel=0.4)


def test_few_poisson_windows_are_called_something_else() -> None:
    alarms = 0
    for seed in range(200):
        times_s = among_poisson(EVENT_S * np.random.default_rng(1000 + seed).poisson(4.0, 16), seed)
        alarms += int(np.sum(~fit(times_s, uncut(times_s)).poisson))
    assert alarms <= 0.01 * 200 * 8


def test_who_is_often_cut_off_is_not_called_odd_for_it() -> None:
    random = np.random.default_rng(3)
    alarms = 0
    for seed in range(100):
        times_s = among_poisson(EVENT_S * random.poisson(8.0, 16), seed)
        cut = uncut(times_s)
        cut[7] = times_s[7] > 0.045  # the smaller half is seen: its variance alone is far below its mean
        alarms += not fit(np.minimum(times_s, 0.045 * cut + 9.0 * ~cut), cut).poisson[7]
    assert alarms <= 3


def test_with_no_one_to_compare_nothing_is_odd() -> None:
    assert poisson_fits(np.array([9.0]), np.array([1.0]), np.array([4.0]), np.array([False])).all()
    assert poisson_fits(np.array([0.0, 9.0]), np.zeros(2), np.zeros(2), np.zeros(2, dtype=np.bool_)).all()


def test_half_of_the_workers_at_most_are_called_odd() -> None:
    random = np.random.default_rng(1)
    found = poisson_fits(random.exponential(50, 8) ** 3, np.full(8, 5.0), np.full(8, 50.0), np.zeros(8, dtype=np.bool_))
    assert 4 <= found.sum() < 8


def test_the_estimate_uses_a_workers_own_distribution() -> None:
    times_s = among_poisson(0.100 * (np.arange(16) % 5 == 0))  # 4 of 16
    found = fit(times_s, uncut(times_s))
    events = np.arange(int(found.longest(EVERYONE)) + 60, dtype=np.float64)
    done = found.done(events, EVERYONE)
    assert done.shape == (8, len(events))
    np.testing.assert_allclose(done[:7], stats.poisson.cdf(events, found.lambda_s[:7, None] / found.event_s), atol=1e-9)
    assert done[7, 1] == pytest.approx(12 / 16)
    assert np.sum(1 - done[7]) * found.event_s == pytest.approx(found.lambda_s[7], rel=1e-6)
    live = np.arange(8) >= 6
    np.testing.assert_array_equal(found.done(events, live), done[6:])
    assert found.longest(live) == pytest.approx(0.100 / found.event_s, rel=0.01)


@pytest.mark.parametrize(("shape", "least"), [("now and then very long", 0.85), ("always the same", 0.9)])
def test_the_interval_of_what_is_not_poisson_rests_on_its_own_variance(shape: str, least: float) -> None:
    random, covered, widths = np.random.default_rng(5), 0, []
    for seed in range(100):
        rare = 0.100 * (random.random(64) < 0.2)
        times_s = among_poisson(rare if shape == "now and then very long" else np.full(64, 0.020), seed)
        found = fit(times_s, uncut(times_s))
        covered += bool(found.low_s[7] <= 0.020 <= found.high_s[7])
        widths.append(found.high_s[7] - found.low_s[7])
    assert covered / 100 >= least
    poisson = 2 * 1.96 * np.sqrt(EVENT_S * 0.020 / 64)
    assert np.median(widths) > 3 * poisson if shape == "now and then very long" else np.median(widths) < 0.5 * poisson


def test_a_silence_longer_than_ever_is_news() -> None:
    times_s = among_poisson(0.100 * (np.arange(16) % 5 == 0))
    for silent_s, own in ((0.05, True), (0.5, False)):
        found = fit(times_s, uncut(times_s), np.where(np.arange(8) == 7, silent_s, 0.0))
        assert (7 in found.curves) is own
        assert not found.poisson[7]
    before = fit(times_s, uncut(times_s)).done(np.arange(4.0), EVERYONE)[7]
    assert (found.done(np.arange(4.0), EVERYONE)[7] < before).all()


observations = st.lists(st.tuples(st.floats(0, 50), st.booleans()), min_size=1, max_size=20)


@settings(deadline=None)
@given(observations, st.floats(0.1, 40))
def test_a_curve_is_a_distribution(pairs: list[tuple[float, bool]], rate: float) -> None:
    made = curve(np.array([c for c, _ in pairs]), np.array([cut for _, cut in pairs]), rate)
    done = made.done(np.arange(200, dtype=np.float64))
    assert (np.diff(done) >= -1e-9).all()
    assert done.min() >= -1e-9
    assert done.max() <= 1 + 1e-9
    assert done[-1] > 1 - 1e-6
    assert np.isfinite(made.longest)


def test_a_curve_is_kaplan_meiers() -> None:
    made = curve(np.array([1.0, 2.0, 2.0, 3.0, 5.0]), np.array([False, True, False, False, True]), 3.0)
    np.testing.assert_allclose(made.counts, [1, 2, 3])
    np.testing.assert_allclose(made.masses, [0.2, 0.2, 0.3])  # 4/5, then 3/4 of it, then 1/2 of that
    assert (made.left, made.bound) == (pytest.approx(0.3), 5.0)
    assert made.done(np.array([5.0]))[0] == pytest.approx(0.7)
    assert made.done(np.array([6.0]))[0] == pytest.approx(1 - 0.3 * stats.poisson.sf(6, 3.0) / stats.poisson.sf(5, 3.0))


def test_a_curve_shares_a_count_between_two_points_and_keeps_the_mean() -> None:
    made = Curve(counts=np.array([3.25]), masses=np.ones(1), left=0.0, bound=3.25, rate=1.0)
    np.testing.assert_allclose(made.done(np.arange(6.0)), [0, 0, 0, 0.75, 1, 1])


@given(st.integers(1, 30), st.floats(0.1, 40))
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


@given(st.lists(st.floats(0, 3000), min_size=1, max_size=5), st.integers(0, 200), st.integers(0, 4000))
def test_probabilities_are_poissons(rates: list[float], near: int, far: int) -> None:
    events = np.unique(np.append(np.arange(near), [near + far, near + 2 * far]).astype(np.float64))
    found = poisson_done(events, np.array(rates))
    np.testing.assert_allclose(found, stats.poisson.cdf(events, np.array(rates)[:, None]), atol=1e-9)
