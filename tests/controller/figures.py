"""Print errors of the predicted times against a slow simulation: `python -m tests.controller.figures`."""

import numpy as np
import pytest

from bench.timing import median_ms
from kofn_common.config.late_rules import RULES, RuleName
from kofn_controller.policy.draws import _order
from kofn_controller.policy.expected_time import expected_times
from kofn_controller.policy.prediction import Predictor
from tests.controller.policy.test_process import estimate, predict, settings
from tests.controller.slow import process, seen


def processes(rule: RuleName, count: int) -> np.ndarray:
    """Return errors of the predicted time, of E_k[T] and of the gradients in a sum (count, 3), for random workers and
    k.
    """
    errors = []
    for lambdas, service, k, seed in settings(count):
        model = estimate(lambdas, service=service)
        found = predict(model, rule)
        slow = seen(process(rule, lambdas, k, service=service, seed=seed), len(lambdas), iterations=4000)
        expected = expected_times(model, np.ones(len(lambdas), np.bool_))[k - 1]
        errors.append(
            (found.mean_s[k - 1] / slow.mean - 1, expected / slow.mean - 1, found.gradients[k - 1] / slow.gradients - 1)
        )
    return np.array(errors)


def standing(rule: RuleName, workers: int) -> tuple[float, float]:
    """Return how far predicted times are off because MANY workers stand for all: for the smallest 5 % of the ks, and
    the others.
    """
    model = estimate(np.random.default_rng(workers).gamma(2.0, 3.0, workers).tolist())
    found = predict(model, rule)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kofn_controller.policy.draws.MANY", "kofn_controller.policy.prediction.MANY"):
            patch.setattr(name, workers)
        patch.setattr("kofn_controller.policy.draws.LEAST", 32)
        _order.cache_clear()
        off = np.abs(found.mean_s / predict(model, rule).mean_s - 1)
    _order.cache_clear()
    return float(off[: workers // 20].max()), float(off[workers // 20 :].max())


def simulation_ms(workers: int) -> float:
    """Return the median time in ms of a prediction under every rule and for all k."""
    model = estimate(np.random.default_rng(workers).gamma(2.0, 3.0, workers).tolist())

    def all_rules() -> None:
        predictor = Predictor()
        for rule in RULES.values():
            predict(model, rule.name, predictor=predictor)

    return median_ms(all_rules, 20)


def main() -> None:
    """Print all errors."""
    for rule in RULES.values():
        off = 100 * np.abs(processes(rule.name, 60))
        medians, worst = np.median(off, axis=0), off.max(axis=0)
        print(
            f"{rule.name}: time off by {medians[0]:.1f} % (worst {worst[0]:.1f}), E_k[T] by {medians[1]:.1f} %"
            f" ({worst[1]:.1f}), gradients in a sum by {medians[2]:.1f} % ({worst[2]:.1f})"
        )
        few, others = standing(rule.name, 200)
        print(f"  of 200 workers 64 stand for all: off by {100 * few:.0f} % (k <= 10), {100 * others:.0f} % (k > 10)")
    for workers in (4, 8, 16, 64, 10_000):
        print(f"all rules, {workers} workers: {simulation_ms(workers):.1f} ms")


if __name__ == "__main__":
    main()
