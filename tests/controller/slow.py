"""The workers' process, event by event: independent of controller/carryover.py, and slow."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An iteration: when its k-th gradient was there, and how many iterations old each gradient in its sum is."""

    when: float
    ages: list[int]


def first_blocks(mean: float, *, service: float, random: np.random.Generator) -> Iterator[float]:
    """T = s + N with N ~ Poisson(mean): the unit is one blocking event."""
    while True:
        yield from (service + random.poisson(mean, 256)).tolist()


def process(
    means: list[float], k: int, *, service: float, seed: int, overhead: float = 0.0, stale: bool = False
) -> Iterator[Ended]:
    """Iteration after iteration; what happens at one instant happens in random order.

    After the k-th gradient the next iteration begins `overhead` later; whoever is late goes on computing meanwhile. Its
    gradients wait until it is in an iteration, and are in the sum of that one.

    `stale`: a finished gradient counts for whatever iteration is current then, unless one has ended at that instant.
    That is not what our workers do: theirs counts only for the iteration in which it was begun.
    """
    random = np.random.default_rng(seed)
    draws = [first_blocks(mean, service=service, random=random) for mean in means]
    due = [
        (next(draw), random.random(), rank, 0) for rank, draw in enumerate(draws)
    ]  # (when, order of ties, who, begun)
    heapq.heapify(due)
    waiting: list[list[int]] = [[] for _ in means]  # of each worker: the iterations of its gradients that are in no sum
    iteration, members, end = 0, list[int](), -overhead
    while True:
        now, _, rank, begun = heapq.heappop(due)
        waiting[rank].append(begun)
        if now == end if stale else begun < iteration:
            start = max(now, end + overhead)
            heapq.heappush(due, (start + next(draws[rank]), random.random(), rank, iteration))
            continue
        members.append(rank)
        if len(members) == k:
            ages = [iteration - each for member in members for each in waiting[member]]
            iteration, end = iteration + 1, now
            for member in members:
                waiting[member] = []
                heapq.heappush(due, (now + overhead + next(draws[member]), random.random(), member, iteration))
            members = []
            yield Ended(when=now, ages=ages)


def mean_time(
    means: list[float],
    k: int,
    *,
    service: float,
    seed: int,
    iterations: int = 800,
    overhead: float = 0.0,
    stale: bool = False,
) -> tuple[float, float]:
    """Mean time from an iteration's begin to its k-th gradient, after the first tenth, and its standard error from 16
    batches.
    """
    made = process(means, k, service=service, seed=seed, overhead=overhead, stale=stale)
    times = np.diff([ended.when for ended in islice(made, iterations)]) - overhead
    batches = [batch.mean() for batch in np.array_split(times[iterations // 10 :], 16)]
    return float(np.mean(batches)), float(np.std(batches, ddof=1) / 4)


def sums(
    means: list[float], k: int, *, service: float, seed: int, iterations: int, overhead: float, lags: int
) -> tuple[float, np.ndarray]:
    """What an iteration's sum holds after the first tenth: the mean number of gradients, and the shares of them that
    are 0, 1, ... `lags` or more iterations old (lags + 1,).
    """
    made = islice(process(means, k, service=service, seed=seed, overhead=overhead), iterations // 10, iterations)
    ages = [ended.ages for ended in made]
    counts = np.bincount(np.minimum(np.concatenate(ages), lags).astype(int), minlength=lags + 1)
    return counts.sum() / len(ages), counts / counts.sum()
