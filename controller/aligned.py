"""First-block times aligned by iteration: what all workers needed in the same one. Bounded memory; no clock, no I/O."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Aligned(NamedTuple):
    """Times or counts by worker and iteration (n, iterations), the oldest first, NaN where nothing is known."""

    values: NDArray[np.float64]
    cut: NDArray[np.bool_]  # marks lower bounds


@dataclass(slots=True, kw_only=True)
class Rows:
    """The latest `window` iterations of `workers` workers: a gradient's time counts for the one in which it was begun."""

    workers: int
    window: int
    latest: int = 0  # iteration
    _times_s: NDArray[np.float64] = field(init=False)
    _cut: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is known."""
        self._times_s = np.full((self.workers, self.window), np.nan)
        self._cut = np.zeros((self.workers, self.window), np.bool_)

    def report(self, rank: int, iteration: int, time_s: float, cut: bool) -> None:
        """Take a time, or a lower bound of it; what is older than the window is left out."""
        if iteration > self.latest:
            gone = np.arange(max(self.latest + 1, iteration - self.window + 1), iteration + 1) % self.window
            self._times_s[:, gone], self._cut[:, gone] = np.nan, False
            self.latest = iteration
        if iteration > self.latest - self.window:
            self._times_s[rank, iteration % self.window] = time_s
            self._cut[rank, iteration % self.window] = cut

    @property
    def aligned(self) -> Aligned:
        """What is known, in seconds."""
        first = -(self.latest + 1) % self.window
        return Aligned(np.roll(self._times_s, first, axis=1), np.roll(self._cut, first, axis=1))
