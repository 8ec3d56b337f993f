"""The predicted iteration time against the process, event by event; where it is exact; what it costs."""

import time

import numpy as np
import pytest

from controller import carryover
from controller.carryover import MANY, Predictor, correction, poisson_counts, simulate
from controller.choose import expected_counts, expected_times
from controller.model import Estimate
from tests.controller.slow import mean_time

SERVICE = 5.0


def estimate(lambdas: list[float], *, service: float = SERVICE, event: float = 1.0) -> Estimate:
    known = np.array(lambdas)
    return Estimate(
        service_s=service,
        event_s=event,
        lambda_s=known,
        low_s=known,
        high_s=known,
        blocks=np.full(len(known), 16.0),
        dispersion=np.ones(len(known)),
        poisson=np.ones(len(known), dtype=np.bool_),
        curves={},
    )


def predicted(model: Estimate, predictor: Predictor | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, error, E_k[T]), all workers live."""
    live = np.ones(len(model.lambda_s), dtype=np.bool_)
    expected = expected_times(model, live)
    prediction = (predictor or Predictor()).predict(model, live, expected)
    return prediction.mean_s, prediction.error_s, expected


def settings(count: int) -> list[tuple[list[float], float, int, int]]:
    """Random (lambdas, s, k, seed): mixtures of workers that are hardly, often and nearly always blocked."""
    random = np.random.default_rng(11)
    made = []
    for seed in range(count):
        n = int(random.integers(2, 10))
        lambdas = random.choice([0.2, 1.0, 5.0, 20.0, 60.0], n) * random.uniform(0.5, 1.5, n)
        made.append((lambdas.tolist(), float(random.choice([1.0, 5.0, 20.0])), int(random.integers(1, n + 1)), seed))
    return made


def test_against_the_process_event_by_event() -> None:
    off, plain, deviations = [], [], []
    for lambdas, service, k, seed in settings(200):
        mean, error, expected = (array[k - 1] for array in predicted(estimate(lambdas, service=service)))
        slow, slow_error = mean_time(lambdas, k, service=service, seed=seed, iterations=1600)
        off.append(mean / slow - 1)
        plain.append(expected / slow - 1)
        deviations.append((mean - slow) / np.hypot(np.hypot(error, slow_error), 0.005 * slow))
    assert np.abs(deviations).max() < 4.5
    assert np.sqrt(np.mean(np.square(deviations))) < 1.2
    assert np.abs(off).max() < 0.06
    assert abs(np.mean(off)) < 0.003
    assert np.mean(np.abs(plain) > 0.06) > 0.1, "without carry-over more than one in ten is further off"
    assert min(plain) < -0.12


def test_all_workers_carry_nothing_over() -> None:
    for lambdas, service, _, _ in settings(50):
        mean, error, expected = predicted(estimate(lambdas, service=service))
        assert mean[-1] == expected[-1]
        assert error[-1] == 0
        assert (mean >= expected).all()


def test_without_the_correction_the_simulation_agrees_for_all_workers() -> None:
    rates = np.array([0.2, 1.0, 5.0, 6.0])
    slowest = (SERVICE + poisson_counts(rates)).max(axis=2)
    error = slowest.std() / np.sqrt(slowest.size)
    assert slowest.mean() == pytest.approx(SERVICE + expected_counts(rates)[-1], abs=4 * error)


def test_the_eight_workers_of_the_design() -> None:
    lambdas = [1.0] * 7 + [20.0]
    mean, error, expected = predicted(estimate(lambdas))
    ours = [mean_time(lambdas, k, service=SERVICE, seed=k, iterations=4000)[0] for k in range(1, 9)]
    np.testing.assert_allclose(mean, ours, rtol=0.02)
    assert expected[0] == pytest.approx(5.04, abs=0.01)
    assert mean[0] == pytest.approx(5.65, abs=0.15)
    assert error[0] < 0.05
    stale, _ = mean_time(lambdas, 1, service=SERVICE, seed=1, iterations=4000, stale=True)
    assert stale == pytest.approx(1.4, abs=0.1), "if a gradient counted for an iteration that it was not begun in"


def test_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 0 needs 2 in each step, worker 1 5, worker 2 9."""
    monkeypatch.setattr(carryover, "BURN_IN", 0)
    times = np.tile([2.0, 5.0, 9.0], (5, 1, 1))
    of_steps = [simulate(times[:steps], np.array([1, 2, 3]))[:, 0] * steps for steps in range(1, 6)]
    added = np.diff([np.zeros(3), *of_steps], axis=0)
    np.testing.assert_allclose(added[:, 0], 0)  # k = 1: worker 0 is in, and starts at once
    np.testing.assert_allclose(added[:, 2], 0)  # k = 3: everyone does
    # k = 2: L = 5; worker 2 finishes its first gradient 4 into the second iteration, its second 8 into the third
    np.testing.assert_allclose(added[:, 1], 0)
    # k = 2, worker 1 needs 1 from the second step on and is late with 4 of its 5: L = 2 + ... of workers 0 and 2
    times = np.array([[2.0, 5.0, 3.0], [2.0, 1.0, 9.0], [2.0, 1.0, 9.0]])[:, None, :]
    of_steps = [simulate(times[:steps], np.array([2]))[0, 0] * steps for steps in range(1, 4)]
    # Step 1: L = 3, worker 1 still needs 2. Step 2: it arrives at 2 + 1 = 3, worker 0 at 2: L = 3, not 2.
    np.testing.assert_allclose(np.diff([0.0, *of_steps]), [0, 1, 0])


def test_the_same_estimate_gives_the_same_numbers() -> None:
    model = estimate([0.3, 1.0, 2.0, 30.0])
    for first, second in zip(predicted(model), predicted(model), strict=True):
        np.testing.assert_array_equal(first, second)


def test_what_has_hardly_changed_is_not_simulated_again() -> None:
    predictor = Predictor()
    first, _, _ = predicted(estimate([1.0, 1.0, 20.0]), predictor)
    second, _, expected = predicted(estimate([1.1, 1.0, 20.5]), predictor)
    assert predictor.simulations == 1
    assert second[-1] == expected[-1], "E_k[T] is always the present one"
    assert (second != first).all()
    scaled, _, _ = predicted(estimate([2.0, 2.0, 40.0], service=2 * SERVICE, event=2.0), predictor)
    assert predictor.simulations == 1, "the same workers, half as fast"
    np.testing.assert_allclose(scaled, 2 * first, rtol=1e-9)
    predicted(estimate([1.0, 1.0, 22.0]), predictor)
    assert predictor.simulations == 2
    predictor.predict(estimate([1.0, 1.0, 22.0]), np.array([True, True, False]), np.array([5.0, 6.0]))
    assert predictor.simulations == 3


def test_hardly_changed_is_near_enough() -> None:
    """What the cache may be off by: half of the workers at either end of what it lets pass."""
    kept = Predictor()
    predicted(estimate([1.0, 2.0, 5.0, 8.0]), kept)
    moved = estimate([1.25, 1.7, 5.45, 7.4])
    from_cache, _, _ = predicted(moved, kept)
    anew, _, _ = predicted(moved)
    assert kept.simulations == 1
    np.testing.assert_allclose(from_cache, anew, rtol=0.03)


def test_neighbours_differ_smoothly() -> None:
    mean, _, _ = predicted(estimate([2.0] * 16))
    assert (np.diff(mean) > 0).all()


@pytest.mark.parametrize("workers", [40, 64])
def test_ks_between_are_near_enough(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = np.random.default_rng(3).gamma(2.0, 3.0, workers)
    some, _ = correction(SERVICE, 1.0, rates)
    monkeypatch.setattr(carryover, "KS", workers)
    every, _ = correction(SERVICE, 1.0, rates)
    assert np.abs((some - every) / (SERVICE + expected_counts(rates))).max() < 0.03


def test_many_workers_are_stood_for_by_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = np.random.default_rng(4).gamma(2.0, 3.0, 2 * MANY)
    few, error = correction(SERVICE, 1.0, rates)
    assert len(few) == len(error) == len(rates)
    monkeypatch.setattr(carryover, "MANY", len(rates))
    everyone, _ = correction(SERVICE, 1.0, rates)
    off = np.abs((few - everyone) / (SERVICE + expected_counts(rates)))
    assert off.max() < 0.08
    assert off[8:].max() < 0.03
    monkeypatch.undo()
    begin = time.perf_counter()
    correction(SERVICE, 1.0, np.random.default_rng(5).gamma(2.0, 3.0, 10_000))
    assert time.perf_counter() - begin < 0.5


@pytest.mark.parametrize(
    "model",
    [
        estimate([0.0, 0.0]),
        estimate([0.0, 3.0], service=0.0),
        estimate([5.0]),
        estimate([0.0, 1e4], event=0.1),
    ],
)
def test_extremes(model: Estimate) -> None:
    mean, error, expected = predicted(model)
    assert np.isfinite(mean).all() and np.isfinite(error).all()
    assert (mean >= expected).all()
