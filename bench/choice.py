"""The quality of the choice of k: E_k[T] against Monte Carlo, the price of grouping, and its time beside scipy's.

    python -m bench.choice                      all three: about two minutes
    python -m bench.choice --part time          one of exact, groups, time
    python -m bench.choice --draws 100000 --json

A block takes two blocking events when nothing blocks (s = 2 tau). Progress goes to stderr, the tables to stdout.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from scipy import fft, special, stats

from bench.synthetic import times_alone
from bench.tables import Row, make_parser, say, show, whole
from bench.timing import median_ms
from kofn_controller.estimate.grouped import GROUPS, by_value, grouped_counts, grouped_done
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.poisson import farthest
from kofn_controller.policy.chooser import cheapest
from kofn_controller.policy.expected_time import GROUP_ABOVE, expected_counts, lattice
from kofn_controller.policy.objective import objective
from kofn_controller.policy.objectives.throughput import throughput_costs

SERVICE = 2.0
"""s in units of tau."""

CHUNK = 100_000


def some_rates(random: np.random.Generator, workers: int) -> FloatArray:
    """Mean blocking events of unlike workers: their own spread, and a few that are ten times as slow."""
    rates = random.gamma(2.0, random.uniform(0.1, 5.0), workers)
    rates[random.random(workers) < 0.15] *= 10
    return np.asarray(rates)


def against_draws(settings: int, draws: int, seed: int) -> list[Row]:
    """E_k[T] and the mean of the k-th smallest of `draws` draws."""
    random, rows = np.random.default_rng(seed), []
    for index in range(settings):
        workers = int(random.choice([2, 4, 8, 12, 24]))
        rates = some_rates(random, workers)
        say(f"exact: setting {index + 1} of {settings}, {workers} workers")
        total = np.zeros(workers)
        squares = np.zeros(workers)
        for begin in range(0, draws, CHUNK):
            drawn = np.sort(random.poisson(rates, (min(CHUNK, draws - begin), workers)), axis=1)
            total += drawn.sum(axis=0)
            squares += (drawn.astype(np.float64) ** 2).sum(axis=0)
        mean = total / draws
        error = np.sqrt(np.maximum(squares / draws - mean**2, 0) / draws)
        off = np.abs(expected_counts(rates) - mean) / (SERVICE + mean)
        rows.append(
            {
                "setting": index + 1,
                "workers": workers,
                "rates": f"{rates.min():.2g} to {rates.max():.3g}",
                "worst_k": int(np.argmax(off)) + 1,
                "worst_error": float(off.max()),
                "standard_error": float((error / (SERVICE + mean)).max()),
            }
        )
    return rows


def exact_counts(rates: FloatArray) -> FloatArray:
    """E of the k-th smallest (n,), every worker's own rate: products of polynomials by FFT, within seconds."""
    workers, most = len(rates), float(rates.max())
    points = np.arange(farthest(most) + 1, dtype=np.float64)
    expected = np.zeros(workers)
    for begin in range(0, len(points), 16):
        done = special.pdtr(points[begin : begin + 16, None], rates)
        polynomials = np.zeros((len(done), 1 << int(np.ceil(np.log2(workers))), 2))
        polynomials[:, :, 0] = 1.0
        polynomials[:, :workers, 0], polynomials[:, :workers, 1] = 1 - done, done
        while polynomials.shape[1] > 1:
            length = 2 * polynomials.shape[2] - 1
            padded = fft.next_fast_len(length, real=True)
            spectra = fft.rfft(polynomials, padded, axis=2)
            polynomials = fft.irfft(spectra[:, ::2] * spectra[:, 1::2], padded, axis=2)[:, :, :length]
        expected += np.clip(np.cumsum(polynomials[:, 0, :workers], axis=1), 0, 1).sum(axis=0)
    return expected


def in_groups(rates: FloatArray, count: int = GROUPS) -> FloatArray:
    """E of the k-th smallest (n,) from groups' means."""
    groups = by_value(rates, count)
    points, weights = lattice(float(groups.means.max()))
    return grouped_counts(grouped_done(groups, points), groups.sizes, weights)


MIXES: dict[str, Callable[[np.random.Generator, int], FloatArray]] = {
    "unlike": lambda random, workers: random.gamma(2.0, 3.0, workers),
    "one slow": lambda random, workers: np.append(random.gamma(2.0, 0.5, workers - 1), 60.0),
}
"""Draw mean blocking events (workers,)."""


def grouping(mix: str, workers: int, count: int, seeds: int, first: int) -> Row:
    """Errors of E_k[T] over all k, and what the k that is chosen from it costs more than the best."""
    median, inner, worst, regret = [], [], [], []
    for seed in range(first, first + seeds):
        rates = MIXES[mix](np.random.default_rng(seed), workers)
        exact = times_alone(SERVICE + exact_counts(rates))
        found = times_alone(SERVICE + in_groups(rates, count))
        error = np.abs(found.expected_s / exact.expected_s - 1)
        costs = throughput_costs(exact)
        median.append(np.median(error))
        inner.append(error[: int(0.95 * workers)].max())
        worst.append(error.max())
        regret.append(costs[int(np.argmin(throughput_costs(found)))] / costs.min() - 1)
    return {
        "rates": mix,
        "workers": workers,
        "groups": count,
        "seeds": seeds,
        "median": float(np.median(median)),
        "worst_k_to_95%": float(np.max(inner)),
        "worst": float(np.max(worst)),
        "regret_worst": float(np.max(regret)),
    }


def groupings(seeds: int, first: int) -> list[Row]:
    """For 65 to 10,000 workers."""
    rows = []
    for mix, workers in product(MIXES, (65, 128, 256, 1000, 10_000)):
        for count in (GROUPS, 64):
            say(f"groups: {workers} workers, {mix}, {count} groups")
            rows.append(grouping(mix, workers, count, seeds, first))
    return rows


def by_scipy(rates: FloatArray) -> FloatArray:
    """The peer: E_k for all k as the integral of scipy's own Poisson-binomial distribution function.

    It is constant between whole counts, so one value for each is the whole integral.
    """
    ks, most = np.arange(len(rates)), float(rates.max())
    points = np.arange(farthest(most) + 1)
    return np.asarray(np.sum([stats.poisson_binom.cdf(ks, special.pdtr(m, rates)) for m in points], axis=0))


def one_by_scipy(rates: FloatArray) -> FloatArray:
    """The peer's price for a single point of its integral: many workers would take it minutes."""
    ks = np.arange(len(rates))
    return np.asarray(stats.poisson_binom.cdf(ks, special.pdtr(np.floor(rates.mean()), rates)))


def chosen(rates: FloatArray, counts: Callable[[FloatArray], FloatArray]) -> int:
    """Return the k chosen from these rates: the call that is timed."""
    goal = objective("throughput", len(rates))
    forecast = times_alone(SERVICE + counts(rates))
    return cheapest((forecast,), goal.costs(forecast)[None], len(rates), forecast.late_policy, 0.05).k


def times(seed: int, repetitions: int) -> list[Row]:
    """Choice and peer in turn."""
    rows = []
    for workers, scale in ((4, 3.0), (16, 3.0), (64, 3.0), (64, 30.0), (1000, 3.0), (10_000, 3.0)):
        say(f"time: {workers} workers, {2 * scale:g} events on average")
        rates = np.random.default_rng(seed).gamma(2.0, scale, workers)
        counts = expected_counts if workers <= GROUP_ABOVE else in_groups
        peer = by_scipy if workers <= GROUP_ABOVE else one_by_scipy
        ours = median_ms(lambda r=rates, c=counts: chosen(r, c), repetitions)
        theirs = median_ms(lambda r=rates, p=peer: p(r), 3)
        rows.append(
            {
                "workers": workers,
                "mean_events": 2 * scale,
                "way": "exact" if workers <= GROUP_ABOVE else f"{GROUPS} groups",
                "ours_ms": ours,
                "scipy_ms": theirs,
                "scipy": "integral" if workers <= GROUP_ABOVE else "one point of it",
                "ratio": theirs / ours,
                "difference": float(np.abs(counts(rates) - by_scipy(rates)).max()) if workers <= GROUP_ABOVE else None,
            }
        )
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=("exact", "groups", "time"), action="append", help="default: all")
    parser.add_argument("--settings", type=whole(), default=24, help="random settings of exact (default 24)")
    parser.add_argument("--draws", type=whole(), default=1_000_000, help="of each (default 1,000,000)")
    parser.add_argument("--seeds", type=whole(), default=3, help="settings of groups for each size (default 3)")
    parser.add_argument("--repetitions", type=whole(), default=51, help="of each timing (default 51)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (default 1)")
    options = parser.parse_args()
    parts: dict[str, Callable[[], list[Row]]] = {
        "exact": lambda: against_draws(options.settings, options.draws, options.seed),
        "groups": lambda: groupings(options.seeds, options.seed),
        "time": lambda: times(options.seed, options.repetitions),
    }
    show({part: parts[part]() for part in options.part or parts}, as_json=options.json)


if __name__ == "__main__":
    main()
