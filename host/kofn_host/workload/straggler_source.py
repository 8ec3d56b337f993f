"""Injected blocking times and hardware speeds of a worker, the same in every trial of a run."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from kofn_common.config.plugins import STRAGGLERS
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats64


class Together(Protocol):
    """The blocking times of all workers of several seeds, as arrays (seeds, workers).

    The times are the same as those of the workers' StragglerSources.
    """

    def compute_s(self, iteration: int) -> Floats64:
        """Return the least times of the forward and backward pass; (1, workers) if they are the same for all seeds."""

    def blocking_s(self, iteration: int, begun_s: Floats64, batch: int = 0) -> Floats64:
        """Return the blocking of gradients that begin `begun_s` (seeds, workers) after the training's start.

        The caller asks for every iteration, in ascending order, and first for batch 0.
        """


class StragglerSource(ABC):
    """One worker's blocking times; constructed with (config, rank).  All times are in seconds."""

    def __init__(self, config: Config, rank: int) -> None:
        self.rank = rank
        self._compute_s = config.model.compute_ms / 1000

    @abstractmethod
    def mean_s(self, iteration: int) -> float:
        """Return the mean blocking in this iteration, with which estimates are compared."""

    @abstractmethod
    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        """Return the blocking of an iteration's `batch`-th gradient, begun `now_s` after the training's start."""

    def compute_s(self, iteration: int) -> float:
        """Return the least time of the forward and backward pass, model.compute_ms by default."""
        return self._compute_s

    @classmethod
    def together(cls, config: Config, seeds: Sequence[int]) -> Together:
        """Return the sources of all workers with each of the seeds."""
        return _OneByOne(cls, config, seeds)

    @classmethod  # noqa: B027  # most need nothing
    def check(cls, config: Config) -> None:
        """Raise ConfigError if the configuration lacks a required setting; called before anything is started."""


class _OneByOne:
    """All workers' StragglerSources, which are called one after another."""

    def __init__(self, kind: type[StragglerSource], config: Config, seeds: Sequence[int]) -> None:
        configs = [replace(config, run=replace(config.run, seed=seed)) for seed in seeds]
        self._sources = [[kind(seeded, rank) for rank in range(config.job.workers)] for seeded in configs]

    def compute_s(self, iteration: int) -> Floats64:
        return np.array([[source.compute_s(iteration) for source in row] for row in self._sources])

    def blocking_s(self, iteration: int, begun_s: Floats64, batch: int = 0) -> Floats64:
        return np.array(
            [
                [source.blocking_s(iteration, batch, now_s) for source, now_s in zip(row, times_s, strict=True)]
                for row, times_s in zip(self._sources, begun_s.tolist(), strict=True)
            ]
        )


def load_stragglers(config: Config, rank: int) -> StragglerSource:
    """Return the configured source for one worker."""
    return straggler_class(config)(config, rank)


def straggler_class(config: Config) -> type[StragglerSource]:
    """Return the configured class; ConfigError if it cannot be loaded."""
    base: type[StragglerSource] = StragglerSource  # type: ignore[type-abstract]
    return STRAGGLERS.load_class(config.model.straggler_source, base)
