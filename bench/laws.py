"""The quality of the time model if workers are not Poisson's, or not independent: the law found, and its E_k[T].

    python -m bench.laws                        all worlds, 300 windows of 16 iterations each: a minute
    python -m bench.laws --repetitions 100 --json

Windows are made from known worlds; the truth is the mean of 40,000 iterations. Progress goes to stderr, the table to
stdout.
"""

from collections.abc import Callable
from itertools import product

import numpy as np

from bench.synthetic import EVENT_S, LARGE, NOISE_S, SERVICE_S, SMALL
from bench.tables import Row, make_parser, say, show, whole
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import fit
from kofn_controller.policy.draws import law_times
from kofn_controller.policy.expected_time import expected_times

WINDOW, TRUTH = 16, 40_000

Blocking = Callable[[np.random.Generator, tuple[int, int]], FloatArray]
"""Draws blocking times in seconds, of the shape (workers, iterations)."""


def bursts(random: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """Each worker is blocked for some iterations in a row: 2.5 on average, a fifth of all."""
    blocked = np.empty(shape, np.bool_)
    now = random.random(shape[0]) < 0.2
    for column in blocked.T:
        column[:] = now
        now = np.where(now, random.random(shape[0]) >= 0.4, random.random(shape[0]) < 0.1)
    return np.asarray(EVENT_S * random.poisson(np.where(blocked, 10.0, 0.3)))


def turns(random: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    """One half of the workers or the other is blocked."""
    first = np.arange(shape[0])[:, None] < shape[0] // 2
    return 0.040 * (first == (random.random(shape[1]) < 0.5)) + EVENT_S * random.poisson(0.5, shape)


def pauses(random: np.random.Generator, events: float | FloatArray, shape: int | tuple[int, int]) -> FloatArray:
    """Poisson numbers of events, in seconds."""
    return EVENT_S * random.poisson(events, shape).astype(np.float64)


def graded(events: tuple[float, float]) -> Blocking:
    """Poisson workers, from the fastest to the slowest."""
    return lambda random, shape: pauses(random, np.geomspace(*events, shape[0])[:, None], shape)


WORLDS: dict[str, Blocking] = {
    "Poisson, 0.2 to 2 events": graded(SMALL),
    "Poisson, 0.5 to 20": graded(LARGE),
    "Poisson, all alike, 4": lambda random, shape: pauses(random, 4.0, shape),
    "Poisson, all alike, 0.2": lambda random, shape: pauses(random, 0.2, shape),
    "a shock common to all": lambda random, shape: pauses(random, 0.3, shape) + pauses(random, 4.0, shape[1]),
    "a common pause, 1 of 10": lambda random, shape: (
        EVENT_S * random.poisson(1.0, shape) + 0.100 * (random.random(shape[1]) < 0.1)
    ),
    "halves take turns": turns,
    "bursts": bursts,
    "alike, exponential": lambda random, shape: random.exponential(0.020, shape),
    "alike, Pareto 2": lambda random, shape: 0.020 * random.pareto(2.0, shape),
    "alike, 0 or 100 ms": lambda random, shape: 0.100 * (random.random(shape) < 0.2).astype(np.float64),
    "alike, gamma 4": lambda random, shape: random.gamma(4.0, EVENT_S, shape),
    "alike, always 20 ms": lambda random, shape: np.full(shape, 0.020),
}


def times(world: Blocking, random: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
    return SERVICE_S + world(random, shape) + random.exponential(NOISE_S, shape) - NOISE_S


def cut_off(times_s: FloatArray, k: int) -> tuple[FloatArray, BoolArray]:
    """Return the observed times if each iteration ends with its k-th worker, and marks of the lower bounds."""
    end_s = np.sort(times_s, axis=0)[k - 1]
    return np.minimum(times_s, end_s), times_s > end_s


def row(name: str, workers: int, k: int, repetitions: int, seed: int) -> Row:
    """Return how often a worker is called not Poisson as the others are, how often all are, and how often they are not
    independent; the mean error of E_1, E_(n/2), E_n by Poisson's law and by the law in use; and the excess of the k
    with the least E_k n/k over the best.
    """
    random, everyone = np.random.default_rng(seed), np.ones(workers, np.bool_)
    truth = np.sort(times(WORLDS[name], random, (workers, TRUTH)), axis=0).mean(axis=1)
    costs, ks = truth / np.arange(1, workers + 1), [0, workers // 2 - 1, workers - 1]
    iterations = np.tile(np.arange(1, WINDOW + 1), (workers, 1))
    laws, off, dearer, odd = [], [], [], 0.0
    for _ in range(repetitions):
        found = fit(*cut_off(times(WORLDS[name], random, (workers, WINDOW)), k), None, iterations)
        poisson = expected_times(found, everyone)
        both = np.array([poisson, law_times(found, everyone, poisson)])
        laws.append(found.law)
        odd += bool(np.any(~found.poisson)) / repetitions
        off.append(both[:, ks] / truth[ks] - 1)
        dearer.append(costs[np.argmin(both / np.arange(1, workers + 1), axis=1)] / costs.min())
    poisson_off, used_off = np.mean(off, axis=0)
    return {
        "world": name,
        "workers": workers,
        "k": k,
        "one_is_not": odd,
        "empirical": laws.count("empirical") / repetitions,
        "bootstrap": laws.count("bootstrap") / repetitions,
        "poisson_off": " ".join(f"{error:+.0%}" for error in poisson_off),
        "used_off": " ".join(f"{error:+.0%}" for error in used_off),
        "poisson_costs": float(np.mean(dearer, axis=0)[0]),
        "used_costs": float(np.mean(dearer, axis=0)[1]),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repetitions", type=whole(), default=300, help="windows of each world (default 300)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    options = parser.parse_args()
    rows = []
    for name, (workers, k) in product(WORLDS, ((8, 8), (8, 6))):
        say(f"{name}: {workers} workers, k = {k}")
        rows.append(row(name, workers, k, options.repetitions, options.seed))
    show({"laws": rows}, as_json=options.json)


if __name__ == "__main__":
    main()
