"""E_k[T] against Monte Carlo and closed forms; objectives, margin, grouping."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.synthetic import times_alone
from kofn_common.config.errors import ConfigError
from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.model import fit
from kofn_controller.policy.chooser import cheapest
from kofn_controller.policy.expected_time import GROUP_ABOVE, expected_counts, expected_times, lattice
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.objective import Choice, Objective, objective
from kofn_controller.policy.objectives.throughput import throughput_costs
from tests.controller.policy.test_process import estimate


def choose(forecast: Forecast, goal: Objective, *, current: int, margin: float) -> Choice:
    """Choose k where there is no choice of rules."""
    return cheapest((forecast,), goal.costs(forecast)[None], current, forecast.late_policy, margin)


def forecast(expected_s: np.ndarray) -> Forecast:
    """Return a forecast whose prediction is useless, so that no choice can rest on it."""
    return times_alone(expected_s, np.full(len(expected_s), np.nan))


rates = st.lists(st.floats(0, 60) | st.sampled_from([0.0, 0.2, 2000.0]), min_size=1, max_size=12).map(np.array)


@settings(max_examples=25, deadline=None)
@given(rates)
def test_expected_times_equal_monte_carlo(means: np.ndarray) -> None:
    draws = np.sort(np.random.default_rng(1).poisson(means, (20_000, len(means))), axis=1)
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(expected_counts(means) - draws.mean(axis=0)) <= 6 * error + 1e-3).all()


@given(st.floats(0.01, 200), st.integers(1, 12))
def test_first_and_last_of_equal_workers_have_closed_forms(mean: float, n: int) -> None:
    points = np.arange(2000)
    expected = expected_counts(np.full(n, mean))
    assert expected[0] == pytest.approx(np.sum(stats.poisson.sf(points, mean) ** n), rel=1e-4, abs=1e-9)
    assert expected[-1] == pytest.approx(np.sum(1 - stats.poisson.cdf(points, mean) ** n), rel=1e-4, abs=1e-9)


@settings(deadline=None)
@given(rates)
def test_more_workers_take_longer_and_the_sum_is_kept(means: np.ndarray) -> None:
    expected = expected_counts(means)
    assert (np.diff(expected) >= -1e-9).all()
    assert expected.sum() == pytest.approx(means.sum(), rel=1e-3, abs=1e-6)  # sorting keeps the sum


@given(st.floats(0, 5000))
def test_lattice_sums_piecewise_linear_functions_exactly(most: float) -> None:
    points, weights = lattice(most)
    everything = np.arange(points[-1])
    slope = np.interp(everything, points, 1 - points / points[-1])
    assert weights @ (1 - points / points[-1]) == pytest.approx(slope.sum(), rel=1e-9)
    assert len(points) <= 128 + 96 + 1


def test_times_equal_the_models() -> None:
    times_s = np.full((3, 8), 0.010)
    times_s[2] = 0.050
    estimate = fit(times_s, np.zeros(times_s.shape, dtype=np.bool_))
    everyone = expected_times(estimate, np.ones(3, dtype=np.bool_))
    assert everyone[0] == pytest.approx(0.010)
    assert everyone[2] == pytest.approx(0.050, rel=0.01)
    assert len(expected_times(estimate, np.array([True, True, False]))) == 2


def test_straggler_is_left_out_and_equal_workers_are_not() -> None:
    equal = 0.010 + 0.001 * expected_counts(np.full(4, 0.2))
    straggler = 0.010 + 0.001 * expected_counts(np.array([0.2, 0.2, 0.2, 60.0]))
    goal = objective("throughput", 4)
    assert choose(forecast(equal), goal, current=4, margin=0.05).k == 4
    assert choose(forecast(straggler), goal, current=4, margin=0.05).k == 3


def test_round_is_the_time_to_move_one_round() -> None:
    np.testing.assert_allclose(throughput_costs(forecast(np.array([1.0, 3.0]))), [2.0, 3.0])


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8).map(sorted), st.integers(1, 8), st.floats(0, 0.5))
def test_change_gains_more_than_the_margin(expected: list[float], current: int, margin: float) -> None:
    n = len(expected)
    choice = choose(forecast(np.array(expected)), objective("throughput", 8), current=current, margin=margin)
    assert 1 <= choice.k <= n
    assert choice.costs[choice.best - 1] == choice.costs.min()
    if choice.k != current and current <= n:
        assert choice.costs[choice.k - 1] < (1 - margin) * choice.costs[current - 1]
    if choice.k == current:
        assert choice.costs.min() >= (1 - margin) * choice.costs[current - 1]


@pytest.mark.parametrize(("text", "live", "k"), [("all", 4, 4), ("all", 2, 2), ("fixed:3", 4, 3), ("fixed:3", 2, 2)])
def test_baselines_follow_their_name_as_far_as_live_workers_permit(text: str, live: int, k: int) -> None:
    expected = np.linspace(0.01, 0.5, live)
    assert choose(forecast(expected), objective(text, 4), current=1, margin=0.05).k == k


@pytest.mark.parametrize("text", ["fixed:0", "fixed:5", "fixed:", "fixed:x", "best", "", "3"])
def test_unknown_objectives_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="objective must be"):
        objective(text, 4)


def exact_above(monkeypatch: pytest.MonkeyPatch, means: np.ndarray) -> np.ndarray:
    """Return the counts with every worker's own mean."""
    monkeypatch.setattr("kofn_controller.policy.expected_time.GROUP_ABOVE", len(means))
    return expected_counts(means)


def test_grouping_is_close_to_the_exact_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    means = np.random.default_rng(2).gamma(2.0, 3.0, 2 * GROUP_ABOVE)
    grouped = expected_counts(means)
    exact = exact_above(monkeypatch, means)
    assert np.abs((5 + grouped) / (5 + exact) - 1).max() < 0.003  # an unblocked block takes five events
    costs = throughput_costs(forecast(5 + exact))
    assert costs[int(np.argmin(throughput_costs(forecast(5 + grouped))))] < 1.001 * costs.min()


@pytest.mark.parametrize("workers", [GROUP_ABOVE + 1, 1000])
def test_straggler_among_many_is_not_averaged_away(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    means = np.append(np.full(workers - 1, 2.0), 60.0)
    grouped = expected_counts(means)
    np.testing.assert_allclose(5 + grouped, 5 + exact_above(monkeypatch, means), rtol=0.003)


def test_own_distributions_count_among_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the workers pause for long in one block of five."""
    n, random = 80, np.random.default_rng(5)
    pauses = 30.0 * (random.random((8, 16)) < 0.2).astype(np.float64)
    curves = Curves.of(np.arange(0, n, 10), pauses, np.zeros(pauses.shape, dtype=np.bool_), pauses.mean(axis=1))
    model = replace(estimate([3.0] * n), curves=curves)
    everyone = np.ones(n, dtype=np.bool_)
    grouped = expected_times(model, everyone)
    monkeypatch.setattr("kofn_controller.policy.expected_time.GROUP_ABOVE", n)
    np.testing.assert_allclose(grouped, expected_times(model, everyone), rtol=0.01)
    assert grouped[-1] > 5 + 20
    assert expected_times(estimate([3.0] * n), everyone)[-1] < 5 + 15


def test_groups_of_equal_workers_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    means = np.repeat(np.arange(16) / 4, 8)
    grouped = expected_counts(means)
    monkeypatch.setattr("kofn_controller.policy.expected_time.GROUP_ABOVE", len(means))
    np.testing.assert_allclose(grouped, expected_counts(means), atol=1e-3)
