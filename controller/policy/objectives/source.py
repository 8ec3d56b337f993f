"""The slow-node scheduling document's choice: k by E_k[T], and late gradients added unweighted to the same block."""

from kofn.config.late_rules import LatePolicy
from kofn.controller.policy.objective import Objective
from kofn.controller.policy.objectives.throughput import throughput_costs

source = Objective(name="source", costs=throughput_costs, unit="s", late_policies=(LatePolicy("merge", 1.0),))
"""docs/explanation/sources.md compares it with the document, step by step."""
