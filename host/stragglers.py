"""Injected stragglers: Poisson blocking events, the same ones in every pass over the same seed.

In iteration i worker w is blocked by N events of `event_ms`, N ~ Poisson(mean_ms / event_ms), drawn from the seed, w
and i alone; so two passes with different k suffer the same events.
"""

import numpy as np

from run.config import Config


class Blocking:
    """The blocking of one worker."""

    def __init__(self, config: Config, rank: int) -> None:
        self._event_s = config.run.event_ms / 1000
        self._seed = (config.run.seed, rank)
        entries = [entry for entry in config.straggler if rank in entry.workers]
        self._means_s = sorted((entry.from_iteration, entry.mean_ms / 1000) for entry in entries)

    def mean_s(self, iteration: int) -> float:
        """The injected truth, lambda of this worker at this iteration, in seconds."""
        return max((entry for entry in self._means_s if entry[0] <= iteration), default=(0, 0.0))[1]

    def blocking_s(self, iteration: int) -> float:
        """How long this worker is blocked in this iteration, in seconds."""
        mean_events = self.mean_s(iteration) / self._event_s
        return float(np.random.default_rng((*self._seed, iteration)).poisson(mean_events) * self._event_s)
