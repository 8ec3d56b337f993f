"""The objective `all`: k = n, the usual baseline."""

from kofn_controller.policy.objective import Objective

all = Objective(name="all", costs=lambda forecast: forecast.workers - forecast.ks, unit="", fixed=True)
