"""Gains that convince, and the accuracy of gains."""

import numpy as np
import pytest

from bench.cluster import cluster
from bench.synthetic import LARGE, SyntheticSetting, times_alone
from kofn_controller.estimate.model import fit
from kofn_controller.policy.evidence import EXACT, Evidence, _signs, gain_error
from kofn_controller.policy.expected_time import expected_times
from kofn_controller.policy.objective import gains, objective
from kofn_controller.policy.objectives.throughput import throughput_costs


def looks(evidence: Evidence, gain: list[float], error: list[float], k: int, count: int) -> list[list[bool]]:
    """Weigh the same gains `count` times, an iteration apart."""
    return [
        evidence.weigh(np.array(gain), np.array(error), larger(gain, k), margin=0.05, iterations=1).tolist()
        for _ in range(count)
    ]


def larger(gain: list[float], k: int) -> np.typing.NDArray[np.bool_]:
    return np.arange(1, len(gain) + 1) > k


def test_large_gain_of_a_smaller_k_convinces_at_once() -> None:
    assert looks(Evidence(window=16), [0.1, 0.4, 0.0], [0.1, 0.1, 0.0], 3, 1) == [[False, True, False]]


def test_larger_k_has_to_convince_for_half_a_window() -> None:
    seen = looks(Evidence(window=16), [0.0, 0.4, -0.2], [0.0, 0.1, 0.1], 1, 9)
    assert [look[1] for look in seen] == [False] * 7 + [True] * 2


def test_small_gain_convinces_after_a_long_time() -> None:
    seen = [look[0] for look in looks(Evidence(window=16), [0.1, 0.0], [0.06, 0.0], 2, 80)]
    first = seen.index(True)
    assert all(seen[first:])
    assert first + 1 == pytest.approx(16 * (3 * 0.06 / 0.1) ** 2, abs=1.0)


def test_gain_within_the_margin_or_of_changing_sign_never_convinces() -> None:
    assert not any(look[0] for look in looks(Evidence(window=16), [0.049, 0.0], [0.06, 0.0], 2, 2000))
    evidence = Evidence(window=16)
    for turn in range(500):
        gain = 0.12 if turn % 2 else -0.12
        assert not evidence.weigh(
            np.array([gain, 0.0]), np.array([0.1, 0.0]), larger([0, 0], 2), margin=0.05, iterations=4
        )[0]


def test_forgotten_evidence_does_not_count() -> None:
    evidence = Evidence(window=16)
    looks(evidence, [0.1, 0.0], [0.06, 0.0], 2, 45)
    evidence.forget()
    assert not any(look[0] for look in looks(evidence, [0.1, 0.0], [0.06, 0.0], 2, 10))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, EXACT + 8])
def test_error_of_a_gain_is_its_spread_over_windows(workers: int) -> None:
    setting = SyntheticSetting(workers=workers, censored=0.0, events=LARGE)
    random, live, k = np.random.default_rng(4), np.ones(workers, dtype=np.bool_), workers
    goal, seen, errors = objective("throughput", workers), [], []
    for _ in range(150):
        estimate = fit(*setting.made(random))
        expected_s = expected_times(estimate, live)
        forecast = times_alone(expected_s)
        costs = throughput_costs(forecast)
        seen.append(gains(costs, costs[k - 1]))
        errors.append(gain_error(estimate, live, [forecast], goal.all_costs, (0, k - 1))[0])
    spread, error = np.std(seen, axis=0)[:-1], np.median(errors, axis=0)[:-1]
    assert (error > 0.7 * spread).all(), "the standard error must not be too small"
    assert (error < 2 * spread).all()
    assert np.median(errors, axis=0)[-1] == 0


def test_one_set_of_moves_suffices_for_very_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = fit(*SyntheticSetting(workers=3000, censored=0.0, events=LARGE).made(np.random.default_rng(4)))
    live, goal = np.ones(3000, dtype=np.bool_), objective("throughput", 3000)
    forecast, present = times_alone(expected_times(estimate, live)), (0, 2999)
    error = gain_error(estimate, live, [forecast], goal.all_costs, present)[0]
    monkeypatch.setattr("kofn_controller.policy.evidence.MOVED", 8 * 3001)
    _signs.cache_clear()
    many = gain_error(estimate, live, [forecast], goal.all_costs, present)[0]
    _signs.cache_clear()
    np.testing.assert_allclose(error[:2900], many[:2900], rtol=0.5, atol=5e-3)  # a tenth of the margin


def test_gains_are_bounded_for_any_costs() -> None:
    np.testing.assert_allclose(gains(np.array([4.0, 2.0, 1.0]), 2.0), [-1.0, 0.0, 0.5])
    for costs in ([0.0, 1.0], [1e308, -1e308], [-1.0, -2.0]):
        assert np.isfinite(gains(np.array(costs), costs[0])).all()
        assert gains(np.array(costs), costs[0])[0] == 0


@pytest.mark.slow
def test_graded_workers_keep_their_k() -> None:
    running = cluster(lambda rank, iteration: 0.001 * 20 ** (rank / 7), workers=8, seed=1)
    for iteration in range(1, 151):
        running.iterate(iteration)
    assert not [change for change in running.changes if change.iteration > 50]
