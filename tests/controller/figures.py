"""Prints the figures that docs/CONTROL.md quotes: `python -m tests.controller.figures`."""

import numpy as np
import pytest

from bench.synthetic import times_alone
from bench.timing import median_ms
from controller.choose import expected_counts, expected_times, round_costs
from controller.prediction import Predictor
from run.late import RULES, RuleName
from tests.controller.slow import process, seen
from tests.controller.test_process import estimate, predict, settings


def grouping(workers: int, seed: int) -> tuple[float, float, float]:
    """Error of E_k[T] by grouping: median, worst but for the slowest four, worst; s is 5 events."""
    means = np.random.default_rng(seed).gamma(2.0, 3.0, workers)
    grouped = times_alone(5 + expected_counts(means))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controller.choose.GROUP_ABOVE", workers)
        exact = times_alone(5 + expected_counts(means))
    error = np.abs(grouped.expected_s / exact.expected_s - 1)
    chosen, costs = int(np.argmin(round_costs(grouped))), round_costs(exact)
    assert costs[chosen] < 1.01 * costs.min()
    return float(np.median(error)), float(error[:-4].max()), float(error.max())


def processes(rule: RuleName, count: int) -> np.ndarray:
    """Errors of the predicted time, of E_k[T] and of the gradients in a sum (count, 3), random workers and k."""
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


def simulation_ms(workers: int) -> float:
    """Median time of a prediction under every rule, all ks."""
    model = estimate(np.random.default_rng(workers).gamma(2.0, 3.0, workers).tolist())

    def all_rules() -> None:
        predictor = Predictor()
        for rule in RULES.values():
            predict(model, rule.name, 0.0, predictor)

    return median_ms(all_rules, 20)


def main() -> None:
    """All of them."""
    for workers in (64, 256, 1000, 10_000):
        median, but_last, worst = (100 * error for error in grouping(workers, 1))
        print(
            f"grouped, {workers} workers: median {median:.2f} %, but for the last four {but_last:.1f} %, {worst:.0f} %"
        )
    for rule in RULES.values():
        off = 100 * np.abs(processes(rule.name, 60))
        medians, worst = np.median(off, axis=0), off.max(axis=0)
        print(
            f"{rule.name}: time off by {medians[0]:.1f} % (worst {worst[0]:.1f}), E_k[T] by {medians[1]:.1f} %"
            f" ({worst[1]:.1f}), gradients in a sum by {medians[2]:.1f} % ({worst[2]:.1f})"
        )
    for workers in (4, 8, 16, 64, 10_000):
        print(f"all rules, {workers} workers: {simulation_ms(workers):.1f} ms")


if __name__ == "__main__":
    main()
