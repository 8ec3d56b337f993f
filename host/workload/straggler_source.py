"""Injected blocking times and hardware speeds of a worker, the same in every trial of a run."""

from abc import ABC, abstractmethod

from kofn.config.plugins import STRAGGLERS
from kofn.config.schema import Config


class StragglerSource(ABC):
    """One worker's blocking times; constructed with (config, rank).  All times are in seconds."""

    def __init__(self, config: Config, rank: int) -> None:
        self.rank = rank
        self._compute_s = config.model.compute_ms / 1000

    @abstractmethod
    def mean_s(self, iteration: int) -> float:
        """Return the mean blocking of the iteration, with which estimates are compared."""

    @abstractmethod
    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        """Return the blocking of an iteration's `batch`-th gradient, begun `now_s` after the training's start."""

    def compute_s(self, iteration: int) -> float:
        """Return the least time of the forward and backward pass, model.compute_ms by default."""
        return self._compute_s

    @classmethod  # noqa: B027  # most need nothing
    def check(cls, config: Config) -> None:
        """ConfigError if the configuration lacks a required setting; called before anything is started."""


def load_stragglers(config: Config, rank: int) -> StragglerSource:
    """Return the configured source for one worker."""
    return straggler_class(config)(config, rank)


def straggler_class(config: Config) -> type[StragglerSource]:
    """Return the configured class; ConfigError if it cannot be loaded."""
    base: type[StragglerSource] = StragglerSource  # type: ignore[type-abstract]
    return STRAGGLERS.load_class(config.model.straggler_source, base)
