"""Blocking times drawn from [[straggler]] and [[shock]], the same in every trial over the same seed.

In iteration i worker w is blocked for the quantile of its law at a uniform draw from the seed, w and i alone: for N
events of `event_ms`, N ~ Poisson(mean_ms / event_ms), or for an exponential or Pareto time; in bursts it is a Markov
chain of two states by the same draws. So two trials with different k suffer the same events.

A shock is drawn from the seed and the time since training began.

With run.shift_every = N the entries move on by one rank every N iterations: what is said of worker r holds for r + 1
from iteration N + 1 on, for r + 2 from 2 N + 1 on, and so around.
"""

import bisect
import functools
import math
from itertools import accumulate

import numpy as np

from kofn.config.schema import Config, ShockSection, StragglerSection
from kofn.host.workload.straggler_source import StragglerSource

DRAWN = 256
"""Draws that are made at once."""

FARTHEST = 12.0
"""Standard deviations from its mean beyond which a count does not come."""

NEVER = StragglerSection(workers=(), mean_ms=0.0)
"""Of a worker that no entry names."""


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
        """The injected truth, lambda of this worker at this iteration, in seconds."""
        return self._entry(iteration).mean_ms / 1000 + sum(shocks.mean_s for shocks in self._shocks)

    def compute_s(self, iteration: int) -> float:
        """As StragglerSource, or the entry's own."""
        own_ms = self._entry(iteration).compute_ms
        return self._compute_s if own_ms is None else own_ms / 1000

    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        """How long this worker is blocked over an iteration's `batch`-th gradient, begun `now_s` after the start."""
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
        """Seconds that a blocking time by this entry does not exceed with probability `level`."""
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
        """What holds for this worker now: of its entries that have begun the one that began last."""
        shifts = (iteration - 1) // self._shift_every if self._shift_every else 0
        role = (self.rank - shifts) % self._workers
        begun = (entry for entry in self._entries if role in entry.workers and entry.from_iteration <= iteration)
        return max(begun, key=lambda entry: (entry.from_iteration, entry.mean_ms), default=NEVER)


class _Bursts:
    """One entry's, as they strike one worker: in each iteration it is in a burst, or not."""

    def __init__(self, entry: StragglerSection, draws: "_Draws") -> None:
        self._draws, self._first = draws, entry.from_iteration
        self._blocking_s = entry.mean_ms / 1000 / entry.burst_share
        self._share, self._ends = entry.burst_share, 1 / entry.burst_iterations
        self._begins = self._ends * entry.burst_share / (1 - entry.burst_share)
        self._struck: list[bool] = []  # from the entry's first iteration on

    def blocking_s(self, iteration: int) -> float:
        """The same for each of an iteration's gradients."""
        while len(self._struck) <= iteration - self._first:
            level = self._draws.uniform(self._first + len(self._struck))
            before = self._struck[-1] if self._struck else None
            likely = self._share if before is None else 1 - self._ends if before else self._begins
            self._struck.append(level < likely)
        return self._blocking_s if self._struck[iteration - self._first] else 0.0


class _Shocks:
    """One entry's, as they strike one worker."""

    def __init__(self, shock: ShockSection, seed: tuple[int, int], rank: int) -> None:
        self._draws = _Draws(*seed, *(() if shock.common else (rank,)))
        self._blocking_s, self._for_s, self._share = shock.blocking_ms / 1000, shock.for_ms / 1000, shock.share

    @property
    def mean_s(self) -> float:
        """Over all times, in seconds."""
        return self._share * self._blocking_s

    def blocking_s(self, now_s: float) -> float:
        """Of a gradient that is begun now."""
        struck = self._draws.uniform(int(now_s / self._for_s)) < self._share
        return self._blocking_s if struck else 0.0


class _Draws:
    """Uniform numbers from 0 to 1, each found by its index."""

    def __init__(self, *seed: int) -> None:
        self.seed = seed
        self._drawn: dict[int, tuple[int, list[float]]] = {}  # by batch

    def uniform(self, at: int, batch: int = 0) -> float:
        """One of them; DRAWN are made at once."""
        part, index = divmod(at, DRAWN)
        drawn, draws = self._drawn.get(batch, (-1, []))
        if part != drawn:
            seed = (*self.seed, part, batch) if batch else (*self.seed, part)
            draws = np.random.default_rng(seed).random(DRAWN).tolist()
            self._drawn[batch] = part, draws
        return draws[index]


def _quantile(mean: float, level: float) -> int:
    """The least number of events that a Poisson count with this mean does not exceed with probability `level`."""
    least, distribution = _distribution(mean)
    return least + bisect.bisect_left(distribution, level)


@functools.lru_cache(maxsize=256)
def _distribution(mean: float) -> tuple[int, list[float]]:
    """The least count that comes, and P(N <= count) of it, the next one ... as far as that is below 1."""
    if not mean:
        return 0, [1.0]
    far = int(FARTHEST * math.sqrt(mean)) + 32
    least, most = max(int(mean) - far, 0), int(mean) + far
    counts = range(least, most)
    return least, list(accumulate(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in counts))


drawn = Drawn
