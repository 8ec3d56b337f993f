"""Injected stragglers: Poisson blocking events, the same ones in every pass over the same seed.

In iteration i worker w is blocked by N events of `event_ms`, N ~ Poisson(mean_ms / event_ms), drawn from the seed, w
and i alone; so two passes with different k suffer the same events.

With run.shift_every = N the means move on by one rank every N iterations: what is said of worker r holds for r + 1 from
iteration N + 1 on, for r + 2 from 2 N + 1 on, and so around.
"""

import numpy as np

from run.config import Config


class Blocking:
    """The blocking of one worker."""

    def __init__(self, config: Config, rank: int) -> None:
        self._event_s = config.run.event_ms / 1000
        self._seed = (config.run.seed, rank)
        self._rank, self._workers = rank, config.job.workers
        self._shift_every = config.run.shift_every
        self._entries = config.straggler

    def mean_s(self, iteration: int) -> float:
        """The injected truth, lambda of this worker at this iteration, in seconds."""
        role = self._role(iteration)
        begun = [
            (entry.from_iteration, entry.mean_ms / 1000)
            for entry in self._entries
            if role in entry.workers and entry.from_iteration <= iteration
        ]
        return max(begun, default=(0, 0.0))[1]

    def blocking_s(self, iteration: int) -> float:
        """How long this worker is blocked in this iteration, in seconds."""
        mean_events = self.mean_s(iteration) / self._event_s
        return float(np.random.default_rng((*self._seed, iteration)).poisson(mean_events) * self._event_s)

    def _role(self, iteration: int) -> int:
        """The rank whose entries hold for this worker now."""
        shifts = (iteration - 1) // self._shift_every if self._shift_every else 0
        return (self._rank - shifts) % self._workers
