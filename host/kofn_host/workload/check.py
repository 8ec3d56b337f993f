"""Checks that a custom workload fulfils the contract of Workload, before anything is started."""

import math
from typing import Any

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import WORKLOADS, in_words
from kofn_common.config.schema import Config
from kofn_host.compression.plan import Planner
from kofn_host.workload.metric import Metric
from kofn_host.workload.replica import Replica, from_parts, to_parts
from kofn_host.workload.workload import Workload, load_workload, metric_of, workload_class


def check_workload(config: Config) -> None:
    """Raise ConfigError if the workload breaks the contract of Workload.

    A custom workload is created for two workers, and makes two steps.
    """
    name = config.model.workload_name
    found, metric = workload_class(config), metric_of(config)
    if metric is not None and metric.percent and not 0 < metric.target <= 1:
        raise ConfigError(f"run.target must be more than 0, at most 1 for {metric.name}, got {metric.target:g}")
    if name in WORKLOADS.built_in:
        return
    try:
        found.check(config)
        fault = _fault(config, metric)
    except ConfigError:
        raise
    except Exception as error:  # a custom class may raise anything
        raise ConfigError(f"{WORKLOADS.called(name)} failed: {in_words(error)}") from error
    if fault:
        raise ConfigError(f"{WORKLOADS.called(name)}: {fault}")


def _fault(config: Config, metric: Metric | None) -> str:
    """Return a description of the broken rule; empty if no rule is broken."""
    workloads = [load_workload(config, rank) for rank in sorted({0, config.job.workers - 1})]
    for workload in workloads:
        if fault := _not_flat("parameters are", getattr(workload, "parameters", None)):
            return fault
    first, last = workloads[0], workloads[-1]
    if not np.array_equal(first.parameters, last.parameters):
        return "the parameters of two workers differ: all must begin with the same (seed: config.run.seed)"
    before = first.parameters.copy()
    _, gradient = first.gradient(1, 0)
    if fault := _not_flat("gradient(1, 0) is", gradient):
        return fault
    if gradient.shape != before.shape:
        return f"gradient(1, 0) must have as many elements as parameters, {before.size:,}, got {gradient.size:,}"
    if not np.array_equal(first.parameters, before):
        return "gradient(1, 0) changes the parameters: only the optimizer may"
    return _not_alike(config, metric, workloads, gradient)


def _not_alike(config: Config, metric: Metric | None, workloads: list[Workload], gradient: Any) -> str:
    """Return how two workers differ after the same steps, if one takes the other's state; empty if they are equal."""
    plan = Planner(blocks=1, widths=(32,)).first()
    nothing, given = np.zeros(1, np.int64), gradient.copy()
    replicas = [Replica(workload, config, 1, plan) for workload in workloads]
    replicas[0].apply(1, given.copy(), nothing, plan)
    if (state := replicas[0].state()) is not None:
        replicas[-1].restore(from_parts(1, dict(to_parts(state, part_bytes=1 << 40))))
    for replica in replicas:
        replica.apply(2, given.copy(), nothing, plan)
    if len({workload.parameters.tobytes() for workload in workloads}) > 1:
        return (
            "two workers' parameters differ after the same steps: a step must depend only on parameters, gradient and"
            " state()"
        )
    if metric is None:
        return ""
    values = [workload.evaluate() for workload in workloads]
    if not all(isinstance(value, int | float | np.number) for value in values):
        return f"evaluate() must return a number, got {values[0]!r}"
    if len({*values}) > 1 and not any(map(math.isnan, values)):
        return f"evaluate() must return the same for the same parameters, got {values[0]!r} and {values[-1]!r}"
    return ""


def _not_flat(what: str, array: Any) -> str:
    """Return why an array is not a row of finite float32; empty if it is such a row."""
    if not isinstance(array, np.ndarray):
        return f"{what} a {type(array).__name__}, but must be a NumPy array"
    if array.dtype != np.float32 or array.ndim != 1 or not array.size:
        return f"{what} {array.dtype} {array.shape}, but must be float32 (elements,)"
    return "" if np.isfinite(array).all() else f"{what} not finite"
