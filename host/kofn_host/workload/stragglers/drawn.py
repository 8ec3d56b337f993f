"""Blocking times drawn from [[straggler]] and [[shock]], the same in every trial with the same seed.

In iteration i the blocking time of worker w is a quantile of the worker's law, at a uniform draw that depends only on
the seed, w and i. The laws are N events of `event_ms` with N ~ Poisson(mean_ms / event_ms), an exponential time and a
Pareto time, among others. Bursts are a two-state Markov chain with the same draws. So trials with different k have the
same events.

A shock is drawn from the seed and the time since the training's start.

With run.shift_every = N the entries move by one rank every N iterations: the entry of worker r applies to r + 1 from
iteration N + 1 on, to r + 2 from 2 N + 1 on, and so on, cyclically.
"""

from collections.abc import Sequence

from kofn_common.config.schema import Config
from kofn_common.config.stragglers import ShockSection, StragglerSection
from kofn_host.workload.blocking_laws import NEVER, UniformDraws, quantile
from kofn_host.workload.drawn_together import DrawnTogether
from kofn_host.workload.straggler_source import StragglerSource, Together


class Drawn(StragglerSource):
    """The blocking of one worker."""

    def __init__(self, config: Config, rank: int) -> None:
        super().__init__(config, rank)
        self._workers = config.job.workers
        self._shift_every = config.run.shift_every
        self._entries = config.straggler
        self._own = UniformDraws(config.run.seed, rank)
        self._bursts: dict[StragglerSection, _Bursts] = {}
        self._shocks = [
            _Shocks(shock, UniformDraws(config.run.seed, config.job.workers + at, *shock.draws(rank, config.job)))
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
            own_s = quantile(entry, self._own.uniform(iteration, batch))
        return own_s + sum(shocks.blocking_s(now_s) for shocks in self._shocks)

    @classmethod
    def together(cls, config: Config, seeds: Sequence[int]) -> Together:
        return DrawnTogether(config, seeds)

    def _bursts_of(self, entry: StragglerSection) -> "_Bursts":
        if entry not in self._bursts:
            self._bursts[entry] = _Bursts(entry, UniformDraws(*self._own.seed))
        return self._bursts[entry]

    def _entry(self, iteration: int) -> StragglerSection:
        """Return the entry that applies to this worker: the latest of its entries that have begun."""
        shifts = (iteration - 1) // self._shift_every if self._shift_every else 0
        role = (self.rank - shifts) % self._workers
        begun = (entry for entry in self._entries if role in entry.workers and entry.from_iteration <= iteration)
        return max(begun, key=lambda entry: (entry.from_iteration, entry.mean_ms), default=NEVER)


class _Bursts:
    """The bursts of an entry at one worker: in each iteration the worker is in a burst, or not."""

    def __init__(self, entry: StragglerSection, draws: UniformDraws) -> None:
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

    def __init__(self, shock: ShockSection, draws: UniformDraws) -> None:
        self._draws = draws
        self._blocking_s, self._for_s, self._share = shock.blocking_ms / 1000, shock.for_ms / 1000, shock.share

    @property
    def mean_s(self) -> float:
        """The mean blocking in seconds."""
        return self._share * self._blocking_s

    def blocking_s(self, now_s: float) -> float:
        """Return the blocking of a gradient that is begun at `now_s`."""
        struck = self._draws.uniform(int(now_s / self._for_s)) < self._share
        return self._blocking_s if struck else 0.0


drawn = Drawn
