"""The workers' process, event by event: independent of controller/carryover.py, and slow."""

import heapq
from collections.abc import Iterator
from itertools import islice

import numpy as np


def first_blocks(mean: float, *, service: float, random: np.random.Generator) -> Iterator[float]:
    """T = s + N with N ~ Poisson(mean): the unit is one blocking event."""
    while True:
        yield from (service + random.poisson(mean, 256)).tolist()


def ends(means: list[float], k: int, *, service: float, seed: int, stale: bool = False) -> Iterator[float]:
    """When each iteration ends; what happens at one instant happens in random order.

    `stale`: a finished gradient counts for whatever iteration is current then, unless one has ended at that instant.
    That is not what our workers do: theirs counts only for the iteration in which it was begun.
    """
    random = np.random.default_rng(seed)
    draws = [first_blocks(mean, service=service, random=random) for mean in means]
    due = [
        (next(draw), random.random(), rank, 0) for rank, draw in enumerate(draws)
    ]  # (when, order of ties, who, begun)
    heapq.heapify(due)
    iteration, members, end = 0, list[int](), 0.0
    while True:
        now, _, rank, begun = heapq.heappop(due)
        late = now == end if stale else begun < iteration
        if late:
            heapq.heappush(due, (now + next(draws[rank]), random.random(), rank, iteration))
            continue
        members.append(rank)
        if len(members) == k:
            iteration, end = iteration + 1, now
            for member in members:
                heapq.heappush(due, (now + next(draws[member]), random.random(), member, iteration))
            members = []
            yield now


def mean_time(
    means: list[float], k: int, *, service: float, seed: int, iterations: int = 800, stale: bool = False
) -> tuple[float, float]:
    """Mean iteration time after the first tenth, and its standard error from 16 batches."""
    times = np.diff(list(islice(ends(means, k, service=service, seed=seed, stale=stale), iterations)))
    batches = [batch.mean() for batch in np.array_split(times[iterations // 10 :], 16)]
    return float(np.mean(batches)), float(np.std(batches, ddof=1) / 4)
