"""Prints the figures that docs/CONTROL.md quotes: `python -m tests.controller.figures`."""

import numpy as np
import pytest

from bench.cluster import cluster
from bench.synthetic import times_alone
from bench.timing import median_ms
from controller.carryover import simulate_all
from controller.choose import expected_counts, round_costs
from tests.controller.slow import mean_time
from tests.controller.test_carryover import SERVICE, estimate, predicted, settings


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


def carry_over(count: int) -> np.ndarray:
    """Errors of prediction and of E_k[T] (count, 2) against the process event by event, random workers and k."""
    errors = []
    for lambdas, service, k, seed in settings(count):
        slow, _ = mean_time(lambdas, k, service=service, seed=seed, iterations=4000)
        mean, _, expected = (array[k - 1] for array in predicted(estimate(lambdas, service=service)))
        errors.append((mean / slow - 1, expected / slow - 1))
    return np.array(errors)


def other_choices(count: int) -> tuple[int, float]:
    """Of so many settings those in which E_k[T] n/k is least for another k, and how much dearer that is at most."""
    dearer = []
    for lambdas, service, _, _ in settings(count):
        mean, _, expected = predicted(estimate(lambdas, service=service))
        ks = np.arange(1, len(lambdas) + 1)
        by_expected = int(np.argmin(expected / ks))
        if by_expected != int(np.argmin(mean / ks)):
            dearer.append((mean / ks)[by_expected] / (mean / ks).min() - 1)
    return len(dearer), max(dearer, default=0.0)


def simulation_ms(workers: int) -> float:
    """Median time of one simulation of all ks."""
    rates = np.random.default_rng(workers).gamma(2.0, 3.0, workers)
    return median_ms(lambda: simulate_all(SERVICE, 1.0, rates, 0.0), 20)


def simulated_share() -> float:
    """Simulations for each decision: four workers, one of them slow, 300 iterations."""
    running = cluster(lambda rank, iteration: 0.060 if rank == 2 else 0.001)
    decisions = 0
    for iteration in range(1, 300):
        running.iterate(iteration)
        decisions += running.decider.choice is not None
    return running.decider.chooser.predictor.simulations / decisions


def table(lambdas: list[float]) -> None:
    """For each k: E_k[T], prediction, the process event by event, and what it would be if stale gradients counted."""
    mean, error, expected = predicted(estimate(lambdas))
    print(f"s = {SERVICE:g}, tau = 1, lambda = {lambdas}")
    print("  k  E_k[T]  predicted (error)  process  n/k x E_k[T]  n/k x predicted  if stale counted")
    for k in range(1, len(lambdas) + 1):
        ours, _ = mean_time(lambdas, k, service=SERVICE, seed=k, iterations=20_000)
        stale, _ = mean_time(lambdas, k, service=SERVICE, seed=k, iterations=20_000, stale=True)
        e, p, share = expected[k - 1], mean[k - 1], len(lambdas) / k
        numbers = (
            f"{e:6.2f}  {p:9.2f} ({error[k - 1]:.2f})  {ours:8.2f}  {e * share:12.1f}  {p * share:15.1f}  {stale:16.2f}"
        )
        print(f"  {k}  {numbers}")


def main() -> None:
    """All of them."""
    for workers in (4, 8, 16, 64, 256, 10_000):
        print(f"simulation of carry-over, {workers:2} workers: {simulation_ms(workers):.1f} ms")
    print(f"simulations for each decision, four workers: {simulated_share():.2f}")
    off = np.abs(carry_over(200))
    print("against the process event by event, 200 settings of 2 to 9 workers: median, 95 %, worst")
    for name, column in zip(("predicted", "E_k[T]"), off.T, strict=True):
        print("  {:9} off by {:.1%}, {:.1%}, {:.1%}".format(name, *np.quantile(column, (0.5, 0.95, 1))))
    print("least E_k[T] n/k is another k: {} of 200, at most {:.0%} dearer".format(*other_choices(200)))
    table([1.0] * 7 + [20.0])
    table([5.0] * 8)
    errors = np.array([grouping(workers, seed) for workers in (128, 256) for seed in range(4)])
    print(
        "grouping, 128 and 256 workers: E_k[T] error, median {:.1%}, k <= n - 4 {:.1%}, worst {:.0%}".format(
            *np.append(np.median(errors[:, 0]), errors[:, 1:].max(axis=0))
        )
    )


if __name__ == "__main__":
    main()
