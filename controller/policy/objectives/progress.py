"""Progress of the training a second, of k and the policy for late gradients together."""

from kofn.config.late_rules import RULES, LatePolicy
from kofn.controller.estimate.measurements import FloatArray
from kofn.controller.policy.objective import Forecast, Objective

LATE_POLICIES = (LatePolicy("async", 0.5), LatePolicy("async", 1.0), LatePolicy("batch-sync", 0.5))
"""With the best k one of them is nearly the best of all (docs/explanation/experiments.md)."""

WARM_UP = 8
"""Iterations after which it is known how fast gradients turn."""


def progress_costs(forecast: Forecast) -> FloatArray:
    """An iteration's predicted time over its worth: expected time for the progress of an exact and fresh gradient."""
    return (forecast.predicted_s + forecast.overhead_s) / forecast.worth


def starving(forecast: Forecast) -> dict[int, str]:
    """Exclude k = n where fast workers repeat: a sum has room for n gradients, so none is left for a late one."""
    if not RULES[forecast.late_policy.rule].repeats:
        return {}
    return {forecast.workers: "slow workers would be in no sum"}


progress = Objective(
    name="progress", costs=progress_costs, unit="s", late_policies=LATE_POLICIES, warm_up=WARM_UP, excludes=starving
)
