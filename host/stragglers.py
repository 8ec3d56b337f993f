"""Injected stragglers: Poisson blocking events, the same ones in every pass over the same seed.

In iteration i worker w is blocked by N events of `event_ms`, N ~ Poisson(mean_ms / event_ms): the quantile at a uniform
draw from the seed, w and i alone; so two passes with different k suffer the same events.

With run.shift_every = N the means move on by one rank every N iterations: what is said of worker r holds for r + 1 from
iteration N + 1 on, for r + 2 from 2 N + 1 on, and so around.
"""

import bisect
import functools
import math
from itertools import accumulate

import numpy as np

from run.config import Config

DRAWN = 256
"""Iterations whose draws are made at once."""

FARTHEST = 12.0
"""Standard deviations from its mean beyond which a count does not come."""


class Blocking:
    """The blocking of one worker."""

    def __init__(self, config: Config, rank: int) -> None:
        self._event_s = config.run.event_ms / 1000
        self._seed = (config.run.seed, rank)
        self._rank, self._workers = rank, config.job.workers
        self._shift_every = config.run.shift_every
        self._entries = config.straggler
        self._drawn: dict[int, tuple[int, list[float]]] = {}  # by batch

    def mean_s(self, iteration: int) -> float:
        """The injected truth, lambda of this worker at this iteration, in seconds."""
        role = self._role(iteration)
        begun = [
            (entry.from_iteration, entry.mean_ms / 1000)
            for entry in self._entries
            if role in entry.workers and entry.from_iteration <= iteration
        ]
        return max(begun, default=(0, 0.0))[1]

    def blocking_s(self, iteration: int, batch: int = 0) -> float:
        """How long this worker is blocked over a gradient, the `batch`-th of this iteration, in seconds."""
        events = _quantile(self.mean_s(iteration) / self._event_s, self._uniform(iteration, batch))
        return events * self._event_s

    def _uniform(self, iteration: int, batch: int) -> float:
        """A gradient's draw from 0..1; they are made DRAWN at once."""
        part, index = divmod(iteration, DRAWN)
        drawn, draws = self._drawn.get(batch, (-1, []))
        if part != drawn:
            seed = (*self._seed, part, batch) if batch else (*self._seed, part)
            draws = np.random.default_rng(seed).random(DRAWN).tolist()
            self._drawn[batch] = part, draws
        return draws[index]

    def _role(self, iteration: int) -> int:
        """The rank whose entries hold for this worker now."""
        shifts = (iteration - 1) // self._shift_every if self._shift_every else 0
        return (self._rank - shifts) % self._workers


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
