"""The part of a control loop that a checkpoint keeps: its choice, and the reports from which its estimates come."""

import numpy as np

from kofn_common.config.k_bounds import bound_k
from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.policy.control_loop import ControlLoop


def state_of(loop: ControlLoop, iteration: int, now_s: float) -> pb.ControlState:
    """Return the state for a checkpoint of this iteration."""
    reports = [
        pb.AgedReport(rank=rank, age_s=now_s - time_s, report=report)
        for time_s, rank, report in loop.recent
        if report.iteration <= iteration
    ]
    rule, weight = loop.late_policy
    return pb.ControlState(objective=loop.goal.name, k=loop.k, late_gradient=rule, age_weight=weight, reports=reports)


def resume(loop: ControlLoop, state: pb.ControlState, iteration: int, now_s: float) -> None:
    """Continue a new loop after this iteration with the reports of `state`. Take over its k and its policy for late
    gradients if the same objective chose them.

    The next choice is due after the usual number of iterations.
    """
    live = np.flatnonzero(loop.live).tolist()
    if state.objective == loop.goal.name and state.late_gradient in RULES:
        loop.k = bound_k(state.k, len(live))
        loop.late_policy = LatePolicy(RULES[state.late_gradient].name, state.age_weight)
    reports = [aged for aged in state.reports if aged.rank in live]
    if reports:
        loop.measurements.join(live[0], now_s, min(aged.report.iteration for aged in reports))
    for aged in reports:
        loop.report(aged.rank, aged.report, now_s - aged.age_s)
    for rank in live:
        loop.measurements.join(rank, now_s, iteration + 1)
    loop.chosen_at = iteration
