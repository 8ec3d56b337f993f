"""Rule and k are chosen together, from the workers' reports about their gradients."""

import numpy as np
import pytest

from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.limits import LAGS
from kofn_controller.policy import chooser
from kofn_controller.policy.control_loop import ControlLoop

EVENT_S = 0.004


def decided(*phases: tuple[float, int], workers: int = 4) -> ControlLoop:
    """Return a control loop under `progress` after phases of equal workers; each iteration keeps a share of the
    direction.
    """
    control_loop = ControlLoop(workers=workers, policy=PolicySection(objective="progress"))
    random = np.random.default_rng(1)
    for iteration, left in enumerate((left for left, iterations in phases for _ in range(iterations)), 1):
        products = tuple(left**lag for lag in range(1, min(iteration - 1, LAGS) + 1))
        for rank in range(workers):
            first_block_s = 0.012 + EVENT_S * random.poisson(2.0)
            report = pb.Report(
                iteration=iteration,
                first_block_s=first_block_s,
                iteration_s=first_block_s + 0.003,
                gradient_norm2=1.5,
                aggregate_norm2=1.0,
                gradients=workers / 2,
                contributors=workers / 2,
                aggregate_products=products,
            )
            control_loop.report(rank, report, float(iteration))
        control_loop.choose(float(iteration))
    return control_loop


def chosen(control_loop: ControlLoop) -> tuple[str, int]:
    return control_loop.late_policy.rule, control_loop.k


def test_old_gradients_are_as_good_where_directions_persist() -> None:
    assert chosen(decided((0.98, 7))) == ("batch-sync", 2), "too little is known, so the first option stays"
    assert chosen(decided((0.98, 12)))[0] == "async"
    assert chosen(decided((0.3, 60)))[0] == "batch-sync"


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [9, 40])
def test_gain_must_remain_although_age_costs_more(monkeypatch: pytest.MonkeyPatch, iterations: int) -> None:
    """In a middle range older gradients are cheaper as measured, but not if age costs half as much again."""
    ways = [0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98]
    doubted = [chosen(decided((left, iterations)))[0] for left in ways]
    monkeypatch.setattr(chooser, "DOUBT", 1.0)
    believed = [chosen(decided((left, iterations)))[0] for left in ways]
    assert doubted == sorted(doubted, reverse=True), "batch-sync must come before async"
    assert 0 < doubted.count("async") < believed.count("async")


@pytest.mark.slow
def test_change_to_fresh_gradients_is_not_delayed_by_doubt() -> None:
    assert chosen(decided((0.98, 12), (0.5, 300)))[0] == "batch-sync"
