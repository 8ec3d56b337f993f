"""Blocking times drawn from [[straggler]] and [[shock]], the same in every trial with the same seed.

In iteration i the blocking time of worker w is a quantile of its law, at a uniform draw that depends only on the seed,
w and i: N events of `event_ms` with N ~ Poisson(mean_ms / event_ms), an exponential or a Pareto time. Bursts are a
two-state Markov chain with the same draws. So trials with different k have the same events.

A shock is drawn from the seed and the time since the training's start.

With run.shift_every = N the entries move by one rank every N iterations: the entry of worker r applies to r + 1 from
iteration N + 1 on, to r + 2 from 2 N + 1 on, and so on, cyclically.
"""

import bisect
import functools
import math
from itertools import accumulate

import numpy as np

from kofn.config.schema import Config, ShockSection, StragglerSection
from kofn.host.workload.straggler_source import StragglerSource

DRAWN = 256
"""Draws per batch."""

FARTHEST = 12.0
"""Standard deviations from the mean beyond which counts have no probability."""

NEVER = StragglerSection(workers=(), mean_ms=0.0)
"""The entry of a worker that no [[straggler]] names."""


class Drawn(StragglerSource):
    """The blocking of one worker."""

    def __init__(self, config: Config, rank: int) -> None:
        super().__init__(config, rank)
        self._workers = config.job.workers
        self._shift_every = config.run.shift_every
        self._entries = config.straggler
        self._own = _Draws(config.run.seed, rank)
        self._bursts: dict[StragglerSection, _Bursts] = {}
        self._shocks = [
            _Shocks(shock, (config.run.seed, config.job.workers + at), rank)
            for at, shock in enumerate(config.shock)
            if rank in shock.workers
        ]

    def mean_s(self, iteration: int) -> float:
        """Return the injected mean blocking, this worker's lambda in this iteration, in seconds."""
        return self._entry(iteration).mean_ms / 1000 + sum(shocks.mean_s for shocks in self._shocks)

    def compute_s(self, iteration: int) -> float:
        """Return the entry's compute_ms, else model.compute_ms, in seconds."""
        own_ms = self._entry(iteration).compute_ms
        return self._compute_s if own_ms is None else own_ms / 1000

    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        """Return the blocking of an iteration's `batch`-th gradient, begun `now_s` after the training's start."""
        entry = self._entry(iteration)
        if entry.law == "bursty":
            own_s = self._bursts_of(entry).blocking_s(iteration)
        else:
            own_s = self._quantile(entry, self._own.uniform(iteration, batch))
        return own_s + sum(shocks.blocking_s(now_s) for shocks in self._shocks)

    def _bursts_of(self, entry: StragglerSection) -> "_Bursts":
        if entry not in self._bursts:
            self._bursts[entry] = _Bursts(entry, _Draws(*self._own.seed))
        return self._bursts[entry]

    def _quantile(self, entry: StragglerSection, level: float) -> float:
        """Return the seconds that this entry's blocking time does not exceed with probability `level`."""
        mean_s = entry.mean_ms / 1000
        if entry.law == "constant":
            return mean_s
        if entry.law == "exponential":
            return -mean_s * math.log1p(-level)
        if entry.law == "pareto":  # of the second kind, from 0 on: its scale is its mean
            return mean_s * (1 / math.sqrt(1 - level) - 1)
        event_s = entry.event_ms / 1000
        return _quantile(mean_s / event_s, level) * event_s

    def _entry(self, iteration: int) -> StragglerSection:
        """Return this worker's present entry: of those that have begun, the latest."""
        shifts = (iteration - 1) // self._shift_every if self._shift_every else 0
        role = (self.rank - shifts) % self._workers
        begun = (entry for entry in self._entries if role in entry.workers and entry.from_iteration <= iteration)
        return max(begun, key=lambda entry: (entry.from_iteration, entry.mean_ms), default=NEVER)


class _Bursts:
    """The bursts of an entry at one worker: in each iteration it is in a burst, or not."""

    def __init__(self, entry: StragglerSection, draws: "_Draws") -> None:
        self._draws, self._first = draws, entry.from_iteration
        self._blocking_s = entry.mean_ms / 1000 / entry.burst_share
        self._share, self._ends = entry.burst_share, 1 / entry.burst_iterations
        self._begins = self._ends * entry.burst_share / (1 - entry.burst_share)
        self._struck: list[bool] = []  # from the entry's first iteration on

    def blocking_s(self, iteration: int) -> float:
        """Return the blocking, the same for all gradients of an iteration."""
        while len(self._struck) <= iteration - self._first:
            level = self._draws.uniform(self._first + len(self._struck))
            before = self._struck[-1] if self._struck else None
            likely = self._share if before is None else 1 - self._ends if before else self._begins
            self._struck.append(level < likely)
        return self._blocking_s if self._struck[iteration - self._first] else 0.0


class _Shocks:
    """The shocks of an entry at one worker."""

    def __init__(self, shock: ShockSection, seed: tuple[int, int], rank: int) -> None:
        self._draws = _Draws(*seed, *(() if shock.common else (rank,)))
        self._blocking_s, self._for_s, self._share = shock.blocking_ms / 1000, shock.for_ms / 1000, shock.share

    @property
    def mean_s(self) -> float:
        """The mean blocking in seconds."""
        return self._share * self._blocking_s

    def blocking_s(self, now_s: float) -> float:
        """Return the blocking of a gradient that is begun now."""
        struck = self._draws.uniform(int(now_s / self._for_s)) < self._share
        return self._blocking_s if struck else 0.0


class _Draws:
    """Uniform numbers from 0 to 1, by index."""

    def __init__(self, *seed: int) -> None:
        self.seed = seed
        self._drawn: dict[int, tuple[int, list[float]]] = {}  # by batch

    def uniform(self, at: int, batch: int = 0) -> float:
        """Return the number with this index; DRAWN are drawn at once."""
        part, index = divmod(at, DRAWN)
        drawn, draws = self._drawn.get(batch, (-1, []))
        if part != drawn:
            seed = (*self.seed, part, batch) if batch else (*self.seed, part)
            draws = np.random.default_rng(seed).random(DRAWN).tolist()
            self._drawn[batch] = part, draws
        return draws[index]


def _quantile(mean: float, level: float) -> int:
    """Return the least number that a Poisson count with this mean does not exceed with probability `level`."""
    least, distribution = _distribution(mean)
    return least + bisect.bisect_left(distribution, level)


@functools.lru_cache(maxsize=256)
def _distribution(mean: float) -> tuple[int, list[float]]:
    """Return the least possible count, and P(N <= count) for it and the following counts, until it is about 1."""
    if not mean:
        return 0, [1.0]
    far = int(FARTHEST * math.sqrt(mean)) + 32
    least, most = max(int(mean) - far, 0), int(mean) + far
    counts = range(least, most)
    return least, list(accumulate(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in counts))


drawn = Drawn
