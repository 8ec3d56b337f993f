"""The processes under each rule against event-by-event simulations; the predictions from them; and exact cases."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from kofn_common.config.late_rules import RuleName
from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.policy.draws import MANY
from kofn_controller.policy.expected_time import expected_times
from kofn_controller.policy.prediction import Prediction, Predictor
from kofn_controller.policy.process import AGES, Beyond
from tests.controller.slow import process, seen

NOTHING = Beyond()

RULES: tuple[RuleName, ...] = get_args(RuleName)

EXACT: tuple[RuleName, ...] = ("merge", "async", "stash", "abort", "drop")
"""Rules under which k = n takes exactly E_n[T]."""


NO_CURVES = Curves.of(np.empty(0, np.int64), np.empty((0, 1)), np.empty((0, 1), np.bool_), np.empty(0))


def estimate(lambdas: list[float], *, service: float = 5.0) -> Estimate:
    known = np.array(lambdas)
    return Estimate(
        service_s=service,
        event_s=1.0,
        lambda_s=known,
        low_s=known,
        high_s=known,
        blocks=np.full(len(known), 16.0),
        dispersion=np.ones(len(known)),
        poisson=np.ones(len(known), dtype=np.bool_),
        curves=NO_CURVES,
    )


def predict(
    model: Estimate, rule: RuleName, beyond: Beyond = NOTHING, predictor: Predictor | None = None
) -> Prediction:
    """Predict with all workers live."""
    live = np.ones(len(model.lambda_s), dtype=np.bool_)
    return (predictor or Predictor()).predict(model, live, expected_times(model, live), beyond, rule)


def settings(count: int) -> list[tuple[list[float], float, int, int]]:
    """Return random (lambdas, s, k, seed): mixtures of workers that are rarely, often and nearly always blocked."""
    random = np.random.default_rng(11)
    made = []
    for seed in range(count):
        n = int(random.integers(2, 10))
        lambdas = random.choice([0.2, 1.0, 5.0, 20.0, 60.0], n) * random.uniform(0.5, 1.5, n)
        made.append((lambdas.tolist(), float(random.choice([1.0, 5.0, 20.0])), int(random.integers(1, n + 1)), seed))
    return made


def of_ages(found: Prediction) -> FloatArray:
    """Return the shares of the gradients by age, for all k (n, AGES + 1)."""
    return np.stack([found.delays.weighted(each) for each in np.eye(AGES + 1)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "beyond"),
    [
        *(
            pytest.param(rule, beyond, marks=() if beyond != NOTHING or rule == "stash" else pytest.mark.long)
            for rule in RULES
            for beyond in (NOTHING, Beyond(2.3))
        ),
        ("async", Beyond(2.3, 1.1)),
    ],
)
def test_process_equals_the_event_by_event_simulation(rule: RuleName, beyond: Beyond) -> None:
    off, numbers, ages, shares = [], [], [], []
    for lambdas, service, k, seed in settings(24):
        found = predict(estimate(lambdas, service=service), rule, beyond)
        made = process(rule, lambdas, k, service=service, seed=seed, **beyond._asdict())
        slow = seen(made, len(lambdas), iterations=1500, lags=AGES)
        off.append((found.mean_s[k - 1] - slow.mean) / (slow.mean + beyond.overhead))
        numbers.append(found.gradients[k - 1] / slow.gradients - 1)
        ages.append(np.abs(of_ages(found)[k - 1] - slow.ages).max())
        shares.append(abs(found.shares.least()[k - 1] - len(lambdas) * slow.shares.min()))
    assert np.median(np.abs(off)) < 0.02
    assert np.abs(off).max() < 0.12
    assert np.median(np.abs(numbers)) < 0.03
    assert np.median(ages) < 0.03
    assert np.median(shares) < 0.05


@pytest.mark.parametrize("rule", EXACT)
def test_k_n_carries_nothing_over(rule: RuleName) -> None:
    model = estimate([0.2, 1.0, 20.0, 5.0])
    expected = expected_times(model, np.ones(4, np.bool_))
    assert predict(model, rule, Beyond(1.7)).mean_s[-1] == pytest.approx(expected[-1])


def test_worker_that_gives_up_waits_for_no_other() -> None:
    model = estimate([0.2, 1.0, 20.0, 5.0])
    found = predict(model, "abort", Beyond(1.7))
    np.testing.assert_allclose(found.mean_s, expected_times(model, np.ones(4, np.bool_)))
    assert not found.error_s.any()


def test_counted_late_gradients_shorten_iterations_and_merged_ones_lengthen_them() -> None:
    model = estimate([5.0] * 8)
    expected = expected_times(model, np.ones(8, np.bool_))
    assert (predict(model, "async").mean_s[:4] < 0.8 * expected[:4]).all()
    assert (predict(model, "merge").mean_s[:4] > 1.02 * expected[:4]).all()
    assert (predict(model, "batch-sync").mean_s[4:] < expected[4:] + 1e-9).all()


def test_no_worker_starves_where_late_gradients_are_merged_or_counted() -> None:
    model = estimate([1.0, 1.0, 1.0, 60.0], service=10.0)
    keeping: tuple[RuleName, ...] = ("merge", "async")
    losing: tuple[RuleName, ...] = ("stash", "drop", "abort")
    for rule in keeping:
        assert (predict(model, rule).shares.least() > 0.02).all()
    for rule in losing:
        assert (predict(model, rule).shares.least()[:2] < 0.002).all()


def test_age_weights_reduce_the_share_of_late_workers() -> None:
    shares = predict(estimate([1.0, 1.0, 1.0, 60.0], service=10.0), "merge").shares
    assert (shares.least(0.5)[:3] < 0.5 * shares.least()[:3]).all()
    assert (shares.least(1.0, np.array([True, False, False, False])) > 0.9).all()


def test_one_simulation_serves_all_rules_and_small_changes() -> None:
    predictor, model = Predictor(), estimate([1.0, 5.0, 20.0])
    for rule in RULES:
        predict(model, rule, Beyond(1.0), predictor)
    predict(estimate([1.01, 5.0, 20.0]), "merge", Beyond(1.0), predictor)
    assert predictor.simulations == 1
    predict(estimate([1.0, 9.0, 20.0]), "merge", Beyond(1.0), predictor)
    assert predictor.simulations == 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("workers", [1, 2, 17, 3 * MANY])
def test_any_number_of_workers_is_predicted(rule: RuleName, workers: int) -> None:
    found = predict(estimate(np.random.default_rng(workers).gamma(1.0, 10.0, workers).tolist()), rule, Beyond(1.0))
    assert len(found.mean_s) == len(found.gradients) == len(found.shares.least()) == workers
    assert np.isfinite(found.mean_s).all()
    assert (found.gradients > 0).all()
    np.testing.assert_allclose(of_ages(found).sum(axis=1), 1.0)


def test_table_of_the_control_page_is_computed() -> None:
    lines = (Path(__file__).parents[3] / "docs" / "explanation" / "control.md").read_text().splitlines()
    begin = next(
        number for number, line in enumerate(lines) if line.startswith("| k | all workers with lambda 5: E_k[T] |")
    )
    columns = []
    for lambdas in ([5.0] * 8, [20.0] + [1.0] * 7):
        model = estimate(lambdas)
        columns += [expected_times(model, np.ones(8, np.bool_)), predict(model, "merge").mean_s]
    for line in lines[begin + 2 : begin + 6]:
        k, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert cells == [f"{column[int(k) - 1]:.2f}" for column in columns], f"k = {k}"
