"""How long a worker is blocked, and how fast its hardware is: injected, and the same in every trial of a run."""

from abc import ABC, abstractmethod

from kofn.config.plugins import STRAGGLERS
from kofn.config.schema import Config


class StragglerSource(ABC):
    """One worker's; made with (config, rank).  All times in seconds."""

    def __init__(self, config: Config, rank: int) -> None:
        self.rank = rank
        self._compute_s = config.model.compute_ms / 1000

    @abstractmethod
    def mean_s(self, iteration: int) -> float:
        """The mean blocking of the iteration: the truth that an estimate is compared with."""

    @abstractmethod
    def blocking_s(self, iteration: int, batch: int = 0, now_s: float = 0.0) -> float:
        """How long it is blocked over an iteration's `batch`-th gradient, begun `now_s` after the training."""

    def compute_s(self, iteration: int) -> float:
        """Least time of its forward and backward pass; model.compute_ms."""
        return self._compute_s

    @classmethod  # noqa: B027  # most need nothing
    def check(cls, config: Config) -> None:
        """ConfigError where the configuration has not what it needs, before anything is started."""


def load_stragglers(config: Config, rank: int) -> StragglerSource:
    """What the configuration names, for one worker."""
    return straggler_class(config)(config, rank)


def straggler_class(config: Config) -> type[StragglerSource]:
    """What the configuration names; ConfigError where that cannot be loaded."""
    base: type[StragglerSource] = StragglerSource  # type: ignore[type-abstract]
    return STRAGGLERS.load_class(config.model.straggler_source, base)
