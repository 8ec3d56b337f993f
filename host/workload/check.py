"""That a workload of a user's own does what a Workload has to, before anything is started: as loading a codec does."""

import math
from typing import Any

import numpy as np

from kofn.config.errors import ConfigError
from kofn.config.plugins import WORKLOADS, in_words
from kofn.config.schema import Config
from kofn.host.compression.plan import Planner
from kofn.host.workload.metric import Metric
from kofn.host.workload.replica import Replica, from_parts, to_parts
from kofn.host.workload.workload import Workload, load_workload, metric_of, workload_class


def check_workload(config: Config) -> None:
    """ConfigError names what breaks the contract.  An own workload is made for two workers, and steps once."""
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
    except Exception as error:  # whatever a foreign class does
        raise ConfigError(f"{WORKLOADS.called(name)} failed: {in_words(error)}") from error
    if fault:
        raise ConfigError(f"{WORKLOADS.called(name)}: {fault}")


def _fault(config: Config, metric: Metric | None) -> str:
    """What is wrong; empty if nothing is."""
    workloads = [load_workload(config, rank) for rank in sorted({0, config.job.workers - 1})]
    for workload in workloads:
        if fault := _not_flat("parameters are", getattr(workload, "parameters", None)):
            return fault
    first, last = workloads[0], workloads[-1]
    if not np.array_equal(first.parameters, last.parameters):
        return "the parameters of two workers differ: all have to begin with the same (seed: config.run.seed)"
    before = first.parameters.copy()
    _, gradient = first.gradient(1, 0)
    if fault := _not_flat("gradient(1, 0) is", gradient):
        return fault
    if gradient.shape != before.shape:
        return f"gradient(1, 0) has {gradient.size:,} elements: as many as parameters, {before.size:,}, are needed"
    if not np.array_equal(first.parameters, before):
        return "gradient(1, 0) changes the parameters: that is for the optimizer"
    return _not_alike(config, metric, workloads, gradient)


def _not_alike(config: Config, metric: Metric | None, workloads: list[Workload], gradient: Any) -> str:
    """What differs between two workers, of which one takes the other's state, after the same steps."""
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
            "two workers' parameters differ after the same steps: a step may depend on parameters, gradient and state()"
        )
    if metric is None:
        return ""
    values = [workload.evaluate() for workload in workloads]
    if not all(isinstance(value, int | float | np.number) for value in values):
        return f"evaluate() gives {values[0]!r}: a number is needed"
    if len({*values}) > 1 and not any(map(math.isnan, values)):
        return f"evaluate() gives {values[0]!r} and {values[-1]!r} for the same parameters: workers end by it, together"
    return ""


def _not_flat(what: str, array: Any) -> str:
    """What it is in place of one row of finite float32; empty if it is that."""
    if not isinstance(array, np.ndarray):
        return f"{what} a {type(array).__name__}: a NumPy array is needed"
    if array.dtype != np.float32 or array.ndim != 1 or not array.size:
        return f"{what} {array.dtype} {array.shape}: float32 (elements,) is needed"
    return "" if np.isfinite(array).all() else f"{what} not finite"
