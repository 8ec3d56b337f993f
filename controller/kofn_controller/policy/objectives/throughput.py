"""The objective `throughput`: the most blocks of workers a second."""

from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.objective import Objective


def throughput_costs(forecast: Forecast) -> FloatArray:
    """Return E_k[T] * n / k: the expected time for as many blocks as there are workers.

    `predicted_s` would be closer to the real time, but it favours larger k, which takes longer to reach an accuracy
    (docs/explanation/control.md).
    """
    return forecast.expected_s * forecast.workers / forecast.ks


throughput = Objective(name="throughput", costs=throughput_costs, unit="s")
