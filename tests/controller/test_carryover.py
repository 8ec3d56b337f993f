"""The predicted iteration time against the process, event by event; where it is exact; what it costs."""

import numpy as np
import pytest

from controller import carryover
from controller.carryover import LAGS, MANY, Prediction, Predictor, poisson_counts, simulate, simulate_all
from controller.choose import expected_counts, expected_times
from controller.model import Estimate
from tests.controller.slow import mean_time, sums

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


def predict(model: Estimate, predictor: Predictor | None = None, overhead: float = 0.0) -> Prediction:
    """All workers live."""
    live = np.ones(len(model.lambda_s), dtype=np.bool_)
    return (predictor or Predictor()).predict(model, live, expected_times(model, live), overhead)


def predicted(
    model: Estimate, predictor: Predictor | None = None, overhead: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, error, E_k[T]), all workers live."""
    prediction = predict(model, predictor, overhead)
    expected = expected_times(model, np.ones(len(model.lambda_s), dtype=np.bool_))
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


OVERHEADS = (0.0, 0.7, 2.3, 8.1)
"""No multiples of a blocking event: otherwise much happens at once."""


@pytest.mark.parametrize("overhead", [(0.0,), OVERHEADS], ids=["none", "overhead"])
def test_against_the_process_event_by_event(overhead: tuple[float, ...]) -> None:
    off, plain, deviations = [], [], []
    for lambdas, service, k, seed in settings(200):
        model, after = estimate(lambdas, service=service), overhead[seed % len(overhead)]
        mean, error, expected = (array[k - 1] for array in predicted(model, overhead=after))
        slow, slow_error = mean_time(lambdas, k, service=service, seed=seed, iterations=1600, overhead=after)
        off.append(mean / slow - 1)
        plain.append(expected / slow - 1)
        deviations.append((mean - slow) / np.hypot(np.hypot(error, slow_error), 0.005 * slow))
    assert np.abs(deviations).max() < 4.5
    assert np.sqrt(np.mean(np.square(deviations))) < 1.2
    assert np.abs(off).max() < 0.06
    assert abs(np.mean(off)) < 0.003
    if not any(overhead):
        assert np.mean(np.abs(plain) > 0.06) > 0.1, "without carry-over more than one in ten is further off"
        assert min(plain) < -0.12


def test_gradients_and_their_delays_are_those_of_the_process() -> None:
    numbers, delays = [], []
    for lambdas, service, k, seed in settings(60):
        after = OVERHEADS[seed % len(OVERHEADS)]
        found = predict(estimate(lambdas, service=service), overhead=after)
        shares = found.delays[k - 1]
        assert shares.sum() == pytest.approx(1)
        made, ages = sums(lambdas, k, service=service, seed=seed, iterations=2500, overhead=after, lags=LAGS)
        numbers.append(found.gradients[k - 1] / made - 1)
        delays.append(np.abs(np.cumsum(shares - ages)).max())
    # Who is in one iteration of a thousand may be in none of the simulation's: then all its gradients are missing.
    assert np.quantile(np.abs(numbers), 0.9) < 0.05
    assert np.quantile(delays, 0.9) < 0.05
    assert np.mean(numbers) == pytest.approx(0, abs=0.03)


def test_who_is_rarely_in_brings_many_old_gradients() -> None:
    """Five workers that are in the sum once in 20 iterations or so: far more gradients than k, and most of them old."""
    lambdas = [0.3, 0.3, 0.9, 0.9, 1.2]
    found = predict(estimate(lambdas, service=20.0))
    made, ages = sums(lambdas, 1, service=20.0, seed=1, iterations=6000, overhead=0.0, lags=LAGS)
    assert made > 4
    assert found.gradients[0] == pytest.approx(made, rel=0.05)
    assert found.delays[0, LAGS] == pytest.approx(ages[LAGS], abs=0.05)


def test_who_is_never_in_counts_nowhere() -> None:
    found = predict(estimate([0.1, 0.1, 500.0]))
    assert found.gradients[1] == 2
    assert found.delays[1, 0] == 1
    assert found.gradients[2] == 3


@pytest.mark.parametrize("late", ["drop", "abort"])
def test_only_members_are_in_a_sum_where_late_gradients_are_not_kept(late: str) -> None:
    model = estimate([5.0] * 4)
    finish, other = predict(model), predict(model, Predictor(late=late))
    assert finish.gradients[1] > 2.5
    np.testing.assert_array_equal(other.gradients, [1, 2, 3, 4])
    np.testing.assert_array_equal(other.delays[:, 0], 1)
    if late == "drop":
        np.testing.assert_array_equal(other.mean_s, finish.mean_s)
    else:
        np.testing.assert_array_equal(other.mean_s, expected_times(model, np.ones(4, dtype=np.bool_)))


def test_a_long_overhead_lets_everyone_start_together() -> None:
    mean, _, expected = predicted(estimate([5.0] * 4), overhead=1e3)
    np.testing.assert_allclose(mean, expected)
    short, _, _ = predicted(estimate([5.0] * 4))
    assert (short[:-1] > 1.05 * expected[:-1]).all()


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
    monkeypatch.setattr(carryover, "COUNTED", slice(0, 1))
    of_steps = [simulate(times[:steps], np.array([1, 2, 3]), 0.0).added[:, 0] * steps for steps in range(1, 6)]
    added = np.diff([np.zeros(3), *of_steps], axis=0)
    np.testing.assert_allclose(added[:, 0], 0)  # k = 1: worker 0 is in, and starts at once
    np.testing.assert_allclose(added[:, 2], 0)  # k = 3: everyone does
    # k = 2: L = 5; worker 2 finishes its first gradient 4 into the second iteration, its second 8 into the third
    np.testing.assert_allclose(added[:, 1], 0)
    # k = 2, worker 1 needs 1 from the second step on and is late with 4 of its 5: L = 2 + ... of workers 0 and 2
    times = np.array([[2.0, 5.0, 3.0], [2.0, 1.0, 9.0], [2.0, 1.0, 9.0]])[:, None, :]
    of_steps = [simulate(times[:steps], np.array([2]), 0.0).added[0, 0] * steps for steps in range(1, 4)]
    # Step 1: L = 3, worker 1 still needs 2. Step 2: it arrives at 2 + 1 = 3, worker 0 at 2: L = 3, not 2.
    np.testing.assert_allclose(np.diff([0.0, *of_steps]), [0, 1, 0])
    # With an overhead of 1.5 it needs 0.5 when the second step begins, with 5 nothing.
    after = [[simulate(times[:steps], np.array([2]), o).added[0, 0] * steps for steps in (1, 2)] for o in (1.5, 5.0)]
    np.testing.assert_allclose(np.diff(after), [[0.0], [0.0]])
    after = [simulate(times[:2], np.array([2]), o).added[0, 0] * 2 for o in (0.5, 1.0)]
    np.testing.assert_allclose(after, [0.5, 0.0])  # at 1.5 + 1 and at 1 + 1, worker 0 at 2


def test_gradients_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """k = 1: worker 0 is in all but the third iteration; in that is worker 1, with what it made in the first two."""
    monkeypatch.setattr(carryover, "BURN_IN", 0)
    monkeypatch.setattr(carryover, "COUNTED", slice(0, 4))
    times = np.array([[2.0, 3.0], [2.0, 3.0], [9.0, 4.0], [1.0, 9.0]])[:, None, :]
    # Worker 1 finishes its first gradient 1 into the second iteration, the next one 2 into the third, the third one 6
    # into that, where worker 0 needs 9. Worker 0 still needs 3 when the fourth begins, and arrives at 4, worker 1 at 9.
    process = simulate(times, np.array([1]), 0.0)
    np.testing.assert_allclose(
        process.gradients, [(1 + 1 + 3 + 2 + 1) / 4]
    )  # the last one is in a sum that is not seen
    np.testing.assert_allclose(process.delays[0] * 8, [4, 2, 1] + [0] * (LAGS - 3) + [1])


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
    predictor.predict(estimate([1.0, 1.0, 22.0]), np.array([True, True, False]), np.array([5.0, 6.0]), 0.0)
    assert predictor.simulations == 3
    predicted(estimate([1.0, 1.0, 22.0]), predictor, 0.0)
    predicted(estimate([1.0, 1.0, 22.0]), predictor, 1.0)
    assert predictor.simulations == 5, "the overhead decides how much is carried over"


def test_hardly_changed_is_near_enough() -> None:
    """What the cache may be off by: half of the workers at either end of what it lets pass."""
    kept = Predictor()
    predicted(estimate([1.0, 2.0, 5.0, 8.0]), kept)
    moved = estimate([1.25, 1.7, 5.45, 7.4])
    from_cache, _, _ = predicted(moved, kept)
    anew, _, _ = predicted(moved)
    assert kept.simulations == 1
    np.testing.assert_allclose(from_cache, anew, rtol=0.03)


def test_of_many_workers_some_always_change_and_it_matters_little() -> None:
    """Windows of 16 blocks of the same 64 workers, a few of them slow: simulated once in a while, and near enough."""
    random, truth, kept = np.random.default_rng(6), np.array([1.0] * 40 + [5.0] * 16 + [60.0] * 8), Predictor()
    off = []
    for _ in range(30):
        model = estimate(random.poisson(truth, (16, 64)).mean(axis=0).tolist())
        cached, anew = predict(model, kept), predict(model)
        off.append(np.abs(cached.mean_s / anew.mean_s - 1).max())
        assert np.abs(cached.gradients - anew.gradients).max() < 0.2 * 64
    assert kept.simulations < 10
    assert max(off) < 0.04


def test_neighbours_differ_smoothly() -> None:
    mean, _, _ = predicted(estimate([2.0] * 16))
    assert (np.diff(mean) > 0).all()


@pytest.mark.parametrize("workers", [40, 64])
def test_ks_between_are_near_enough(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = np.random.default_rng(3).gamma(2.0, 3.0, workers)
    some = simulate_all(SERVICE, 1.0, rates, 0.0)
    monkeypatch.setattr(carryover, "KS", workers)
    every = simulate_all(SERVICE, 1.0, rates, 0.0)
    assert np.abs((some.mean_s - every.mean_s) / (SERVICE + expected_counts(rates))).max() < 0.03
    assert np.abs(some.gradients / every.gradients - 1).max() < 0.2
    np.testing.assert_allclose(some.delays.sum(axis=1), 1)


def test_many_workers_are_stood_for_by_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = np.random.default_rng(4).gamma(2.0, 3.0, 2 * MANY)
    few = simulate_all(SERVICE, 1.0, rates, 0.0)
    assert few.workers == len(few.error_s) == len(few.gradients) == len(few.delays) == len(rates)
    monkeypatch.setattr(carryover, "MANY", len(rates))
    everyone = simulate_all(SERVICE, 1.0, rates, 0.0)
    off = np.abs((few.mean_s - everyone.mean_s) / (SERVICE + expected_counts(rates)))
    assert off.max() < 0.08
    assert off[8:].max() < 0.03
    assert np.abs(few.gradients / everyone.gradients - 1)[8:].max() < 0.25
    assert few.gradients[-1] == len(rates)


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
