"""The quality of the estimator: coverage of its intervals, speed of tracking changes, findings of its test of the fit.

    python -m bench.estimator                          all of it, 1,000 repetitions a setting: some minutes
    python -m bench.estimator --part tracking          one of coverage, tracking, fit, time
    python -m bench.estimator --repetitions 100 --json

Times are made from known parameters (bench/synthetic.py); changes of k are the control loop's own in virtual time.
Progress goes to stderr, the tables to stdout.
"""

import time
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy import stats

from bench.cluster import Rates, cluster
from bench.synthetic import ALWAYS, EVENT_S, LARGE, NOISE_S, SERVICE_S, SMALL, SyntheticSetting, times_alone
from bench.tables import Row, make_parser, say, show, whole
from bench.timing import median_ms
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.model import Estimate, fit
from kofn_controller.estimate.poisson import farthest
from kofn_controller.policy.evidence import gain_error
from kofn_controller.policy.expected_time import done_by, expected_counts
from kofn_controller.policy.objectives.throughput import throughput_costs

CHANGE_AT, STATIONARY, SETTLED = 50, 1000, 100
STEP_S = 0.020  # how often silence is looked at

SCENARIOS: dict[str, tuple[int, Rates]] = {
    "4 equal, 1 ms": (4, lambda rank, iteration: 0.001),
    "4 equal, 20 ms": (4, lambda rank, iteration: 0.020),
    "8 equal, 5 ms": (8, lambda rank, iteration: 0.005),
    "4, one of 20 ms": (4, lambda rank, iteration: 0.020 if rank == 1 else 0.001),
    "4, one of 60 ms": (4, lambda rank, iteration: 0.060 if rank == 1 else 0.001),
    "8, one of 20 ms": (8, lambda rank, iteration: 0.020 if rank == 1 else 0.001),
    "4 graded, 1 to 20 ms": (4, lambda rank, iteration: 0.001 * 20 ** (rank / 3)),
    "8 graded, 1 to 20 ms": (8, lambda rank, iteration: 0.001 * 20 ** (rank / 7)),
}
"""Workers that do not change, and their mean blocking times."""


def coverage(setting: SyntheticSetting, repetitions: int, seed: int) -> Row:
    """How often the 95 % intervals hold the truth: that of lambda, of all workers, of the fastest and the slowest, and
    that of s + lambda; and how often any worker is called not Poisson."""
    random = np.random.default_rng(seed)
    truth_s = setting.lambda_s
    held, total = np.zeros((2, setting.workers))
    units, width, errors, alarms = [], 0.0, np.zeros(setting.workers), 0.0
    for _ in range(repetitions):
        found = fit(*setting.made(random))
        held += (found.low_s <= truth_s) & (truth_s <= found.high_s + found.hidden_s)
        mean_s = SERVICE_S + truth_s - found.service_s
        total += (found.low_s <= mean_s) & (mean_s <= found.high_s)
        units.append(1e3 * found.event_s)
        finite = np.isfinite(found.high_s)
        width += float(np.mean((found.high_s - found.low_s)[finite] / truth_s[finite])) / repetitions
        errors += (found.lambda_s / truth_s - 1) / repetitions
        alarms += float(np.any(~found.poisson)) / repetitions
    return {
        "events": f"{setting.events[0]:g} to {setting.events[1]:g}",
        "workers": setting.workers,
        "censored": setting.censored,
        "lambda": held.mean() / repetitions,
        "fastest": held[0] / repetitions,
        "slowest": held[-1] / repetitions,
        "s + lambda": total.mean() / repetitions,
        "width": width,
        "bias_fastest": errors[0],
        "bias_slowest": errors[-1],
        "tau_ms": float(np.mean(units)),
        "tau_sd_ms": float(np.std(units)),
        "not_poisson": alarms,
    }


def coverages(repetitions: int, seed: int) -> list[Row]:
    rows = []
    for events, workers, censored in product((SMALL, LARGE, ALWAYS), (4, 16, 64), (0.0, 0.25, 0.5)):
        say(f"coverage: {workers} workers, {events[0]:g} to {events[1]:g} events, {censored:.0%} cut off")
        rows.append(coverage(SyntheticSetting(workers=workers, censored=censored, events=events), repetitions, seed))
    return rows


def tracked(before_s: float, after_s: float, seeds: int, first: int) -> Row:
    """Iterations from one worker's change until k is another, and until its interval holds the new mean."""
    chosen, held = [], []
    for seed in range(first, first + seeds):
        left_out, inside = _tracked(before_s, after_s, seed)
        chosen.append(left_out)
        held.append(inside)
    return {
        "change": f"{1e3 * before_s:g} to {1e3 * after_s:g} ms",
        "seeds": seeds,
        "k_median": float(np.median(chosen)),
        "k_worst": float(np.max(chosen)),
        "interval_median": float(np.median(held)),
        "interval_worst": float(np.max(held)),
    }


def _tracked(before_s: float, after_s: float, seed: int) -> tuple[float, float]:
    """For one seed; infinite where it did not happen within 100 iterations."""
    running = cluster(lambda rank, iteration: after_s if rank == 1 and iteration >= CHANGE_AT else before_s, seed=seed)
    chosen = inside = np.inf
    for iteration in range(1, CHANGE_AT + 100):
        running.iterate(iteration)
        estimate, since = running.control_loop.estimate, iteration - CHANGE_AT + 1
        if since < 1 or estimate is None:
            continue
        if running.control_loop.k == 3:
            chosen = min(chosen, since)
        if estimate.low_s[1] <= after_s <= estimate.high_s[1]:
            inside = min(inside, since)
    return chosen, inside


def recovered(seeds: int, first: int) -> Row:
    """Iterations until a worker that was left out, and goes from 60 to 1 ms of blocking, is waited for again."""
    taken = []
    for seed in range(first, first + seeds):
        running = cluster(lambda rank, iteration: 0.060 if rank == 1 and iteration < CHANGE_AT else 0.001, seed=seed)
        iteration = 0
        while iteration < CHANGE_AT or (running.control_loop.k == 3 and iteration < CHANGE_AT + STATIONARY):
            iteration += 1
            running.iterate(iteration)
        taken.append(iteration - CHANGE_AT + 1)
    return {"change": "60 to 1 ms", "seeds": seeds, "k_median": float(np.median(taken)), "k_worst": max(taken)}


def silence_s(seed: int) -> float:
    """Time until k = 3 when worker 3 falls silent while the other three have sent their first block."""
    running = cluster(lambda rank, iteration: 0.001, seed=seed)
    for iteration in range(1, 40):
        running.iterate(iteration)
    for rank in (0, 1, 2):
        running.arrive(rank, 40, int(1e6 * (running.now_s + STEP_S)))
    begin_s = running.now_s
    while running.control_loop.k == 4:
        running.now_s += STEP_S
        running.look()
    return running.now_s - begin_s


def silences(seeds: int, first: int) -> Row:
    """How long a sudden silent one of four workers is waited for."""
    waited_s = [silence_s(seed) for seed in range(first, first + seeds)]
    return {
        "silent": "1 of 4",
        "seeds": seeds,
        "left_out_after_ms": 1e3 * float(np.median(waited_s)),
        "worst_ms": 1e3 * max(waited_s),
    }


def stationary(name: str, seeds: int, first: int) -> Row:
    """Changes of k among workers that do not change, after the first SETTLED iterations; and what the last k costs."""
    workers, rates = SCENARIOS[name]
    costs = _true_costs(workers, rates)
    changes, ks, dearer, last = [], set(), [], []
    for seed in range(first, first + seeds):
        running = cluster(rates, workers=workers, seed=seed)
        seen = []
        for iteration in range(1, SETTLED + STATIONARY + 1):
            running.iterate(iteration)
            seen.append(running.control_loop.k)
        late = seen[SETTLED - 1 :]
        changes.append(sum(one != other for one, other in pairwise(late)))
        ks.update(late)
        last.append(running.changes[-1].iteration if running.changes else 0)
        dearer.append(costs[seen[-1] - 1] / costs.min() - 1)
    return {
        "scenario": name,
        "seeds": seeds,
        "iterations": STATIONARY,
        "changes_median": float(np.median(changes)),
        "changes_worst": max(changes),
        "without": sum(not count for count in changes),
        "last_change_median": float(np.median(last)),
        "ks": sorted(ks),
        "dearer_median": float(np.median(dearer)),
        "dearer_worst": float(max(dearer)),
    }


def _true_costs(workers: int, rates: Rates) -> FloatArray:
    """E_k[T] n / k of the true parameters (n,)."""
    counts = expected_counts(np.array([rates(rank, 1) for rank in range(workers)]) / EVENT_S)
    expected_s = SERVICE_S + EVENT_S * counts
    return throughput_costs(times_alone(expected_s))


def trackings(seeds: int, first: int) -> list[Row]:
    """Changes up, and none at all."""
    rows: list[Row] = []
    for before_s, after_s in ((0.001, 0.020), (0.001, 0.060)):
        say(f"tracking: {1e3 * before_s:g} to {1e3 * after_s:g} ms")
        rows.append(tracked(before_s, after_s, seeds, first))
    say("tracking: 60 to 1 ms")
    rows.append(recovered(seeds, first))
    say("tracking: silence")
    rows.append(silences(seeds, first))
    for name in SCENARIOS:
        say(f"stationary: {name}")
        rows.append(stationary(name, seeds, first))
    return rows


def decision(workers: int) -> Row:
    """Median CPU time of a decision in the course of training, and of the standard errors of gains alone.

    `due_ms` is the decision that comes with the first report of each iteration: fit, tests and simulations included;
    `slow_ms` is what 9 of 10 take at most.
    """
    running = cluster(lambda rank, iteration: 0.011 if rank % 5 == 0 else 0.001, workers=workers, decide_every=10**6)
    running.looking = False
    due_ms = []
    for iteration in range(1, 80):
        running.iterate(iteration)
        begin = time.process_time()
        running.control_loop.choose(running.now_s)
        due_ms.append(1e3 * (time.process_time() - begin))
    found = running.control_loop
    assert found.estimate is not None and found.choice is not None
    estimate, live, costs = found.estimate, found.live, found.goal.all_costs
    forecasts, present = found.choice.forecasts, (found.choice.place, found.k - 1)
    errors_ms = median_ms(lambda: gain_error(estimate, live, forecasts, costs, present), 20)
    return {
        "workers": workers,
        "due_ms": float(np.median(due_ms[20:])),
        "slow_ms": float(np.quantile(due_ms[20:], 0.9)),
        "errors_ms": errors_ms,
    }


def decisions() -> list[Row]:
    """For some numbers of workers."""
    return [decision(workers) for workers in (4, 8, 16, 64, 10_000)]


SHAPES: dict[str, Callable[[np.random.Generator, int], np.typing.NDArray[Any]]] = {
    "Poisson, 20 ms": lambda random, size: EVENT_S * random.poisson(4.0, size),
    "always 20 ms": lambda random, size: np.full(size, 0.020) + random.exponential(NOISE_S, size),
    "0 or 100 ms, 1 of 5": lambda random, size: 0.100 * (random.random(size) < 0.2),
    "exponential, 20 ms": lambda random, size: random.exponential(0.020, size),
    "heavy tail, 20 ms": lambda random, size: 0.020 * random.pareto(2.0, size),
    "one pause of 1 s": lambda random, size: 1.0 * (np.arange(size) == random.integers(size)),
}
"""Blocking times (size,) of a worker among seven that are Poisson."""


def alarm(name: str, window: int, repetitions: int, seed: int) -> Row:
    """How often the eighth worker is called not Poisson, how often one of the others is; and what its curve gains."""
    random = np.random.default_rng(seed)
    setting = SyntheticSetting(workers=8, censored=0.0, events=LARGE, window=window)
    found = others = 0.0
    off: list[tuple[float, float]] = []
    truth = np.sort(SHAPES[name](random, 100_000))
    for _ in range(repetitions):
        times_s, cut = setting.made(random)
        times_s[7] = SERVICE_S + SHAPES[name](random, window)
        estimate = fit(times_s, cut)
        found += not estimate.poisson[7]
        others += float(np.mean(~estimate.poisson[:7]))
        off.append(_distances(estimate.lambda_s[7] / estimate.event_s, estimate, truth))
    poisson, used = np.median(np.array(off), axis=0)
    return {
        "blocking": name,
        "window": window,
        "called_not_poisson": found / repetitions,
        "others_called": others / repetitions,
        "distance_poisson": float(poisson),
        "distance_used": float(used),
    }


def _distances(rate: float, estimate: Estimate, truth: FloatArray) -> tuple[float, float]:
    """Return the largest difference of P(T <= t) from the truth: of Poisson's law, and of the law in use."""
    most = max(rate, float(estimate.curves.longest.max(initial=0.0)))
    events = np.arange(farthest(most), dtype=np.float64)
    real = np.searchsorted(truth, estimate.event_s * (events + 0.5)) / len(truth)
    poisson = stats.poisson.cdf(events, rate)
    used = done_by(estimate, np.arange(8) == 7, events)[0]
    return float(np.abs(poisson - real).max()), float(np.abs(used - real).max())


def alarms(repetitions: int, seed: int) -> list[Row]:
    """Every shape, in two windows."""
    rows = []
    for name, window in product(SHAPES, (16, 64)):
        say(f"fit: {name}, window {window}")
        rows.append(alarm(name, window, repetitions, seed))
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=("coverage", "tracking", "fit", "time"), action="append", help="default: all")
    parser.add_argument("--repetitions", type=whole(), default=1000, help="of each setting (default 1000)")
    parser.add_argument("--seeds", type=whole(), default=30, help="runs of each scenario of tracking (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "coverage": lambda: coverages(options.repetitions, options.seed),
        "tracking": lambda: trackings(options.seeds, options.seed),
        "time": decisions,
        "fit": lambda: alarms(options.repetitions, options.seed),
    }
    show({part: parts[part]() for part in options.part or parts}, as_json=options.json)


if __name__ == "__main__":
    main()
