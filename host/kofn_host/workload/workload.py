"""The interface of a workload, the source of a worker's gradients."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from kofn_common.config.plugins import WORKLOADS
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats
from kofn_host.workload.metric import ACCURACY, Metric
from kofn_host.workload.optimizer import Optimizer


class Workload(ABC):
    """One worker's workload; constructed with (config, rank).

    `parameters`, float32 (elements,), are the same at all workers.  `optimizer` updates them in place; None: SGD with
    model.learning_rate and model.momentum.
    """

    metric: ClassVar[Metric | None] = ACCURACY
    """The metric that evaluate() returns; None: no evaluation, and a trial ends at run.max_iterations."""

    parameters: Floats
    optimizer: Optimizer | None = None

    @abstractmethod
    def gradient(self, iteration: int, batch: int = 0) -> tuple[float | None, Floats]:
        """Return the loss, if any, and the gradient, of the parameters' shape, for an iteration's `batch`-th data."""

    def evaluate(self) -> float:
        """Return the metric of the current parameters, which must be the same at all workers: they end together."""
        raise NotImplementedError(f"{type(self).__name__} must have evaluate(), or metric = None")

    def evaluate_owned(self) -> float | None:
        """Return the metric on the classes that only one worker holds ([[shard]]); None if there are none."""
        return None

    @classmethod  # noqa: B027  # most need nothing
    def check(cls, config: Config) -> None:
        """Raise ConfigError if the configuration lacks a required setting; called before anything is started."""


def load_workload(config: Config, rank: int) -> Workload:
    """Return the configured workload for one worker."""
    return workload_class(config)(config, rank)  # type: ignore[call-arg]  # every derived class takes these


def workload_class(config: Config) -> type[Workload]:
    """Return the configured class; ConfigError if it cannot be loaded."""
    base: type[Workload] = Workload  # type: ignore[type-abstract]
    return WORKLOADS.load_class(config.model.workload_name, base)


def metric_of(config: Config) -> Metric | None:
    """Return the metric with the run's target; None if the workload evaluates nothing."""
    metric, target = workload_class(config).metric, config.run.target
    return metric if metric is None or target is None else replace(metric, target=target)
