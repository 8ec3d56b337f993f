"""The objective `progress`: k and the policy for late gradients with the most progress of the training a second."""

from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.objective import Objective

LATE_POLICIES = (LatePolicy("async", 0.5), LatePolicy("async", 1.0), LatePolicy("batch-sync", 0.5))
"""The candidates. With the best k, one of them is nearly the best of all policies (docs/explanation/experiments.md)."""

WARM_UP = 8
"""Iterations before the first choice, in which the correlation of gradients is measured."""


def progress_costs(forecast: Forecast) -> FloatArray:
    """Return the predicted time of an iteration over its worth: the time for the progress of one exact, fresh
    gradient."""
    return (forecast.predicted_s + forecast.overhead_s) / forecast.worth


def starving(forecast: Forecast) -> dict[int, str]:
    """Exclude k = n if the rule lets fast workers compute several gradients: a sum has room for n gradients, so no room
    is left for a late worker's gradient."""
    if not RULES[forecast.late_policy.rule].repeats:
        return {}
    return {forecast.workers: "slow workers would be in no sum"}


progress = Objective(
    name="progress", costs=progress_costs, unit="s", late_policies=LATE_POLICIES, warm_up=WARM_UP, excludes=starving
)
