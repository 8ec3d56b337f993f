"""Blocks of all workers a second."""

from kofn.controller.estimate.measurements import FloatArray
from kofn.controller.policy.objective import Forecast, Objective


def throughput_costs(forecast: Forecast) -> FloatArray:
    """E_k[T] * n / k: expected time to move one round of all workers' blocks.

    Not by `predicted_s`, which is nearer to the time but favours larger k, and so takes longer to an accuracy
    (docs/explanation/control.md).
    """
    return forecast.expected_s * forecast.workers / forecast.ks


throughput = Objective(name="throughput", costs=throughput_costs, unit="s")
