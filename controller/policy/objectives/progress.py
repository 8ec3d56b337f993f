"""Progress of the training a second, of k and the treatment of late gradients together."""

from kofn.config.late_rules import RULES, Treatment
from kofn.controller.estimate.measurements import FloatArray
from kofn.controller.policy.objective import Forecast, Objective

TREATMENTS = (Treatment("async", 0.5), Treatment("async", 1.0), Treatment("batch-sync", 0.5))
"""With the best k one of them is nearly the best of all (docs/explanation/experiments.md)."""

WARM_UP = 8
"""Iterations after which it is known how fast gradients turn."""

STARVING = 1e3
"""Factor on the cost where slow workers are in no sum."""


def progress_costs(forecast: Forecast) -> FloatArray:
    """An iteration's predicted time over its worth: expected time for the progress of an exact and fresh gradient.

    A sum has room for n gradients. Where fast workers repeat until it has n of them, none is left for a late one.
    """
    costs = (forecast.predicted_s + forecast.overhead_s) / forecast.worth
    if RULES[forecast.treatment.rule].repeats:
        costs[-1] *= STARVING
    return costs


progress = Objective(name="progress", costs=progress_costs, unit="s", treatments=TREATMENTS, warm_up=WARM_UP)
