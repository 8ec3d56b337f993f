"""Every worker, always: what k of n is compared with."""

from kofn.controller.policy.objective import Objective

all = Objective(name="all", costs=lambda forecast: forecast.workers - forecast.ks, unit="", fixed=True)
