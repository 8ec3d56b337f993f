"""Times drawn from an estimate by each of its laws, and predictions from them, against the process itself."""

from dataclasses import replace

import numpy as np
import pytest

from kofn_common.config.late_rules import RuleName
from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.policy.draws import MANY, draw, law_times
from kofn_controller.policy.expected_time import expected_times
from kofn_controller.policy.prediction import Prediction, Predictor
from kofn_controller.policy.process import Beyond
from tests.controller.policy.test_process import estimate
from tests.controller.slow import drawn, seen

SERVICE = 5.0


def by_law(model: Estimate, live: np.typing.NDArray[np.bool_] | None = None) -> FloatArray:
    everyone = np.ones(len(model.lambda_s), np.bool_) if live is None else live
    return law_times(model, everyone, expected_times(model, everyone))


def predict(model: Estimate, rule: RuleName) -> Prediction:
    return Predictor().predict(model, np.ones(len(model.lambda_s), np.bool_), by_law(model), Beyond(overhead=1.0), rule)


def together(rows: FloatArray) -> Estimate:
    """Return an estimate from measured whole iterations (n, iterations)."""
    return replace(estimate(rows.mean(axis=1).tolist()), law="bootstrap", rows=rows)


def own(counts: FloatArray) -> Estimate:
    """Return an estimate of n independent workers with these measured counts (n, window)."""
    n = len(counts)
    curves = Curves.of(np.arange(n), counts, np.zeros(counts.shape, np.bool_), counts.mean(axis=1))
    return replace(estimate(counts.mean(axis=1).tolist()), law="empirical", own=curves)


def test_times_of_whole_iterations_are_their_means() -> None:
    rows = np.random.default_rng(1).poisson(4.0, (5, 16)).astype(np.float64)
    rows += np.random.default_rng(2).poisson(9.0, 16)
    np.testing.assert_allclose(by_law(together(rows)), SERVICE + np.sort(rows, axis=0).mean(axis=1))
    live = np.array([True, False, True, True, False])
    np.testing.assert_allclose(by_law(together(rows), live), SERVICE + np.sort(rows[live], axis=0).mean(axis=1))


@pytest.mark.parametrize("n", [6, 3 * MANY])
def test_times_of_own_distributions_are_those_of_independent_draws(n: int) -> None:
    random = np.random.default_rng(3)
    counts = random.gamma(1.0, 5.0, (n, 16))
    counts[-1] += 100.0
    places = random.integers(16, size=(n, 4000))
    sampled = np.sort(counts[np.arange(n)[:, None], places], axis=0).mean(axis=1)
    np.testing.assert_allclose(by_law(own(counts)), SERVICE + sampled, rtol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["async", "merge", "batch-sync"])
def test_common_shock_is_predicted_as_in_the_process(rule: RuleName) -> None:
    """The process runs event by event, with the rows in random order."""
    random = np.random.default_rng(4)
    rows = (random.poisson(1.0, (4, 16)) + 12.0 * (random.random(16) < 0.3)).astype(np.float64)
    order = random.integers(16, size=100_000)
    found = predict(together(rows), rule)
    for k in (1, 3, 4):
        made = drawn(rule, 4, k, lambda rank, iteration: SERVICE + rows[rank, order[iteration]], seed=k, overhead=1.0)
        slow = seen(made, 4, iterations=4000)
        assert found.mean_s[k - 1] == pytest.approx(slow.mean, rel=0.1), f"k = {k}"


def test_own_distributions_are_predicted_as_in_the_process() -> None:
    random = np.random.default_rng(5)
    counts = random.gamma(0.5, 10.0, (6, 16))
    found = predict(own(counts), "async")
    for k in (1, 3, 6):
        made = drawn("async", 6, k, lambda rank, iteration: SERVICE + random.choice(counts[rank]), seed=k, overhead=1.0)
        slow = seen(made, 6, iterations=2000)
        assert found.mean_s[k - 1] == pytest.approx(slow.mean, rel=0.06), f"k = {k}"


@pytest.mark.parametrize("n", [MANY + 1, 2000])
def test_straggler_represents_itself_alone(n: int) -> None:
    made = draw(estimate([2.0] * (n - 1) + [400.0]), np.ones(n, np.bool_), 1.0)
    assert made.sizes.sum() == n
    assert made.sizes[made.stands[-1]] == 1
    assert made.times[:, :, made.stands[-1]].min() > SERVICE + 250
    assert made.times.shape[2] <= MANY


def test_another_law_is_another_simulation() -> None:
    predictor, model, everyone = Predictor(), estimate([4.0] * 4), np.ones(4, np.bool_)
    rows = np.tile(np.arange(0.0, 9.0), (4, 1))
    for each in (model, replace(model, law="bootstrap", rows=rows), model):
        predictor.predict(each, everyone, by_law(model), Beyond(overhead=1.0), "async")
    assert predictor.simulations == 3
