"""The objective `source`: k by E_k[T], and late gradients merged with full weight, as document 003 describes."""

from kofn_common.config.late_rules import LatePolicy
from kofn_controller.policy.objective import Objective
from kofn_controller.policy.objectives.throughput import throughput_costs

source = Objective(name="source", costs=throughput_costs, unit="s", late_policies=(LatePolicy("merge", 1.0),))
"""The objective of document 003; docs/explanation/sources.md compares both step by step."""
