"""The workers' process under each rule, event by event: independent of kofn_controller.policy.process, and slow."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

BATCHES_MOST = 4
"""The most gradients that a worker makes of one iteration's parameters under batch-sync."""

Draw = Callable[[int, int], float]
"""Returns a gradient's first-block time for (rank, iteration in which it is begun)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An iteration: the time to its k-th gradient, and (rank, age in iterations) of each gradient in its sum."""

    took: float
    sums: list[tuple[int, int]]


def poisson_draw(means: list[float], *, service: float, seed: int) -> Draw:
    """Return T = s + N with N ~ Poisson(mean); the unit is one blocking event."""
    random = np.random.default_rng(seed)
    stocks: list[list[float]] = [[] for _ in means]

    def draw(rank: int, iteration: int) -> float:
        if not stocks[rank]:
            stocks[rank] = (service + random.poisson(means[rank], 256)).tolist()
        return stocks[rank].pop()

    return draw


@dataclass(kw_only=True)
class System:
    """n workers in virtual time; simultaneous events happen in random order."""

    rule: str
    n: int
    k: int
    draw: Draw
    overhead: float
    catch_up: float
    unheard: bool
    """A worker that finishes during the overhead contributes to the old iteration, since it has not
    heard of its end.
    """
    random: np.random.Generator
    due: list[tuple[float, float, int, int]] = field(default_factory=list)  # time, order of ties, rank, begun
    applied: dict[int, int] = field(default_factory=dict)  # by rank: ended iterations that it has applied
    iteration: int = 0
    begin: float = 0.0  # start of the iteration
    members: list[int] = field(default_factory=list)  # ranks whose gradients count among the k
    sums: list[tuple[int, int]] = field(default_factory=list)  # (rank, begun) of the present sum
    kept: dict[int, list[int]] = field(default_factory=dict)  # by rank: the begun iterations of gradients in no sum yet

    def start(self, rank: int, at: float) -> None:
        """Start a gradient of the present iteration's parameters, which are available at its beginning."""
        at = max(at, self.begin)
        self.applied[rank] = self.iteration
        heapq.heappush(self.due, (at + self.draw(rank, self.iteration), self.random.random(), rank, self.iteration))

    def run(self) -> Iterator[Ended]:
        """Yield iteration after iteration."""
        for rank in range(self.n):
            self.start(rank, 0.0)
        while True:
            now, _, rank, begun = heapq.heappop(self.due)
            if self.rule == "async" and (missed := self.iteration - self.applied[rank]):
                self.applied[rank] = self.iteration
                heapq.heappush(self.due, (now + missed * self.catch_up, self.random.random(), rank, begun))
                continue
            self.finished(rank, begun, now)
            if len(self.members) == self.k:
                yield self.end(now)

    def finished(self, rank: int, begun: int, now: float) -> None:
        """Handle a finished gradient."""
        late = begun < self.iteration
        if self.unheard and now < self.begin:
            self.kept.setdefault(rank, []).append(begun)
            self.start(rank, now)
            return
        if self.rule in ("async", "batch-sync") or not late:
            self.members.append(rank)
            self.sums += [(rank, begun), *((rank, old) for old in self.kept.pop(rank, []))]
            if self.rule == "batch-sync" and self.members.count(rank) < BATCHES_MOST:
                self.start(rank, now)
            return
        if self.rule == "merge":
            self.sums.append((rank, begun))
        elif self.rule == "stash":
            self.kept.setdefault(rank, []).append(begun)
        self.start(rank, now)

    def end(self, now: float) -> Ended:
        """End the iteration at the k-th gradient, or at once if that came before the iteration's beginning."""
        end = max(now, self.begin)
        ended = Ended(took=end - self.begin, sums=[(rank, self.iteration - begun) for rank, begun in self.sums])
        ready = set(self.members)
        if self.rule in ("abort", "batch-sync"):
            self.due, ready = [], set(range(self.n))
        self.iteration, self.begin, self.members, self.sums = self.iteration + 1, end + self.overhead, [], []
        for rank in sorted(ready):
            self.start(rank, self.begin)
        return ended


def process(
    rule: str,
    means: list[float],
    k: int,
    *,
    service: float,
    seed: int,
    overhead: float = 0.0,
    catch_up: float = 0.0,
    unheard: bool = False,
) -> Iterator[Ended]:
    """Simulate Poisson workers."""
    draw = poisson_draw(means, service=service, seed=seed)
    return drawn(rule, len(means), k, draw, seed=seed, overhead=overhead, catch_up=catch_up, unheard=unheard)


def drawn(
    rule: str,
    n: int,
    k: int,
    draw: Draw,
    *,
    seed: int,
    overhead: float = 0.0,
    catch_up: float = 0.0,
    unheard: bool = False,
) -> Iterator[Ended]:
    """Simulate any workers."""
    random = np.random.default_rng([seed, 1])
    system = System(
        rule=rule, n=n, k=k, draw=draw, overhead=overhead, catch_up=catch_up, unheard=unheard, random=random
    )
    return system.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Statistics of a simulation, after the first tenth of the iterations."""

    mean: float  # time to the k-th gradient
    error: float  # its standard error, from 16 batches
    gradients: float  # in a sum
    ages: np.ndarray  # shares of the gradients that are 0, 1, ... lags or more iterations old (lags + 1,)
    shares: np.ndarray  # of each worker in all gradients (n,)


def seen(made: Iterator[Ended], n: int, *, iterations: int, lags: int = 16) -> Seen:
    """Return the statistics of `iterations` iterations."""
    ended = list(islice(made, iterations))[iterations // 10 :]
    batches = [batch.mean() for batch in np.array_split([each.took for each in ended], 16)]
    sums = np.array([entry for each in ended for entry in each.sums])
    ages = np.bincount(np.minimum(sums[:, 1], lags), minlength=lags + 1)
    return Seen(
        mean=float(np.mean(batches)),
        error=float(np.std(batches, ddof=1) / 4),
        gradients=len(sums) / len(ended),
        ages=ages / len(sums),
        shares=np.bincount(sums[:, 0], minlength=n) / len(sums),
    )
