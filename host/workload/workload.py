"""What a worker computes gradients of."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from kofn.config.plugins import WORKLOADS
from kofn.config.schema import Config
from kofn.host.arrays import Floats
from kofn.host.workload.metric import ACCURACY, Metric
from kofn.host.workload.optimizer import Optimizer


class Workload(ABC):
    """One worker's; made with (config, rank).

    `parameters`, float32 (elements,), are the same at all workers and are updated in place, by `optimizer`; None: SGD
    with model.learning_rate and model.momentum.
    """

    metric: ClassVar[Metric | None] = ACCURACY
    """What evaluate() returns; None: nothing is evaluated, and a trial ends at run.max_iterations."""

    parameters: Floats
    optimizer: Optimizer | None = None

    @abstractmethod
    def gradient(self, iteration: int, batch: int = 0) -> tuple[float | None, Floats]:
        """The loss, where there is one, and the gradient, shape of `parameters`, of an iteration's `batch`-th data."""

    def evaluate(self) -> float:
        """The metric of the parameters as they are: the same at all workers, which end by it."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluate(): with metric = None none is needed")

    def evaluate_owned(self) -> float | None:
        """The same on the classes that one worker alone holds ([[shard]]); None where there are none."""
        return None

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


def metric_of(config: Config) -> Metric | None:
    """What the run's trials have to reach; None where the workload evaluates nothing."""
    metric, target = workload_class(config).metric, config.run.target
    return metric if metric is None or target is None else replace(metric, target=target)
