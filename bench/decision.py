"""The time of a decision with many workers, and the error of the approximation.

    python -m bench.decision                    1,000, 10,000 and 100,000 workers: about two minutes
    python -m bench.decision --workers 1000 --json

`choose_ms` is the time from an estimate to k and rule for `throughput`, `progress_ms` for `progress`, and `fit_ms` that
of the estimate itself; medians of CPU time, without the first decision of a job. `error_median` and `error_worst` are
relative errors of E_k[T] over all k against the exact distribution (bench/choice.py), with a separate rate for every
worker. `k` is the choice of `throughput` by the approximation, `exact_k` that by the exact distribution, and `regret`
the share by which the former costs more.
"""

import time
from collections.abc import Callable

import numpy as np

from bench.choice import exact_counts
from bench.synthetic import EVENT_S, NOISE_S, SERVICE_S, times_alone
from bench.tables import Row, make_parser, say, show, whole
from kofn_common.config.late_rules import LatePolicy
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.model import Estimate, fit
from kofn_controller.policy.chooser import Chooser, Known
from kofn_controller.policy.expected_time import expected_counts
from kofn_controller.policy.objective import objective
from kofn_controller.policy.objectives.throughput import throughput_costs
from kofn_controller.policy.prediction import Predictor
from kofn_controller.policy.worth import WorthModel

WINDOW, DECISIONS = 16, 9


def rates(workers: int, seed: int) -> FloatArray:
    """Return mean numbers of blocking events (workers,): a gamma distribution, and a tenth of stragglers."""
    found = np.random.default_rng(seed).gamma(4.0, 0.5, workers)
    found[: max(workers // 10, 1)] *= 8
    return found


def measured(workers: int, seed: int) -> tuple[Callable[[Estimate | None], Estimate], Estimate]:
    """Return a function that fits a window of measurements after an earlier estimate, and its first result."""
    random = np.random.default_rng(seed)
    counts = random.poisson(rates(workers, seed)[:, None], (workers, WINDOW))
    times_s = SERVICE_S + EVENT_S * counts + random.exponential(NOISE_S, counts.shape)
    cut, iterations = np.zeros(counts.shape, np.bool_), np.tile(np.arange(1, WINDOW + 1), (workers, 1))

    def again(before: Estimate | None) -> Estimate:
        return fit(times_s, cut, None, iterations, before)

    return again, again(None)


def choices_ms(estimate: Estimate, goal: str) -> FloatArray:
    """Return the CPU times of successive decisions, the first one left out."""
    workers = len(estimate.lambda_s)
    chooser = Chooser(goal=objective(goal, workers), window=WINDOW, predictor=Predictor())
    policies = chooser.goal.late_policies or (LatePolicy(),)
    known = Known(
        estimate=estimate,
        live=np.ones(workers, np.bool_),
        worth_model=WorthModel(workers=workers, average="gradients"),
        overhead_s=0.002,
        catch_up_s=0.0,
    )
    k, late_policy, found = workers, policies[-1], []
    for number in range(DECISIONS):
        begin = time.process_time()
        choice = chooser.choose(
            known, policies, k=k, late_policy=late_policy, margin=0.05, iterations=1 if number else None
        )
        found.append(1e3 * (time.process_time() - begin))
        assert choice is not None
        k, late_policy = choice.k, choice.late_policy
    return np.array(found[1:])


def row(workers: int, seed: int) -> Row:
    again, estimate = measured(workers, seed)
    begin = time.process_time()
    for _ in range(3):
        estimate = again(estimate)
    fit_ms = 1e3 * (time.process_time() - begin) / 3
    given = rates(workers, seed)
    say(f"{workers:,} workers: the exact distribution")
    quick, exact = (SERVICE_S + EVENT_S * counts for counts in (expected_counts(given), exact_counts(given)))
    quick_k, exact_k = (int(throughput_costs(times_alone(each)).argmin()) + 1 for each in (quick, exact))
    costs = throughput_costs(times_alone(exact))
    return {
        "workers": workers,
        "choose_ms": float(np.median(choices_ms(estimate, "throughput"))),
        "progress_ms": float(np.median(choices_ms(estimate, "progress"))),
        "fit_ms": fit_ms,
        "error_median": f"{np.median(np.abs(quick / exact - 1)):.1e}",
        "error_worst": f"{np.abs(quick / exact - 1).max():.1e}",
        "k": quick_k,
        "exact_k": exact_k,
        "regret": f"{costs[quick_k - 1] / costs.min() - 1:.1e}",
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=whole(65), nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows = []
    for workers in options.workers:
        say(f"{workers:,} workers")
        rows.append(row(workers, options.seed))
    show({"decisions": rows}, as_json=options.json)


if __name__ == "__main__":
    main()
