"""What a worker computes gradients of."""

from abc import ABC, abstractmethod
from typing import ClassVar

from kofn.config.plugins import WORKLOADS
from kofn.config.schema import Config
from kofn.host.arrays import Floats
from kofn.host.workload.evaluation import Evaluates


class Workload(ABC):
    """One worker's; made with (config, rank).

    `parameters`, float32 (elements,), are the same at all workers and are updated in place; `evaluator` looks at them.
    """

    trains: ClassVar[bool] = True
    """Whether it has an accuracy, which a trial has to reach (run.target_accuracy)."""

    parameters: Floats
    evaluator: Evaluates

    @abstractmethod
    def gradient(self, iteration: int, batch: int = 0) -> tuple[float | None, Floats]:
        """The loss, where there is one, and the gradient, shape of `parameters`, of an iteration's `batch`-th data."""

    @classmethod  # noqa: B027  # most need nothing
    def check(cls, config: Config) -> None:
        """ConfigError where the configuration has not what it needs, before anything is started."""


def load_workload(config: Config, rank: int) -> Workload:
    """What the configuration names, for one worker."""
    return workload_class(config)(config, rank)  # type: ignore[call-arg]  # as each class derived from it is made


def workload_class(config: Config) -> type[Workload]:
    """What the configuration names; ConfigError where that cannot be loaded."""
    base: type[Workload] = Workload  # type: ignore[type-abstract]
    return WORKLOADS.load_class(config.model.workload_name, base)
