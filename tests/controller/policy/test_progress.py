"""The costs of progress, and the choices that it never makes."""

from dataclasses import replace

import numpy as np
import pytest

from bench.synthetic import times_alone
from kofn_common.config.late_rules import LatePolicy, RuleName
from kofn_controller.policy.chooser import cheapest
from kofn_controller.policy.objective import EXCLUDED
from kofn_controller.policy.objectives.progress import LATE_POLICIES, progress


def test_no_worker_is_left_without_room_in_a_sum() -> None:
    """This holds although iterations are equally short for every k, and each further gradient is worth more."""
    like = times_alone(np.full(8, 0.01), np.full(8, 0.01))
    forecasts = tuple(
        replace(like, worth=np.linspace(0.2, 0.9, 8) + (late_policy.rule == "batch-sync") / 20, late_policy=late_policy)
        for late_policy in LATE_POLICIES
    )
    choice = cheapest(forecasts, progress.all_costs(forecasts), 4, LatePolicy("batch-sync"), 0.0)
    assert (choice.best_late_policy.rule, choice.best) == ("async", 8)


@pytest.mark.parametrize("rule", ["merge", "async", "batch-sync"])
def test_shorter_iteration_and_one_worth_more_cost_less(rule: RuleName) -> None:
    forecast = replace(
        times_alone(np.ones(4), np.array([1.0, 2.0, 2.0, 6.0])),
        worth=np.array([0.25, 0.5, 1.0, 1.0]),
        late_policy=LatePolicy(rule),
    )
    forecast = replace(forecast, overhead_s=0.5)
    assert progress.costs(forecast).tolist() == [6.0, 5.0, 2.5, 6.5]
    (costs,) = progress.all_costs([forecast])
    excluded = progress.excludes(forecast)
    assert costs.tolist() == [6.0, 5.0, 2.5, 6.5 * (EXCLUDED if excluded else 1)]
    assert excluded.keys() == ({4} if rule == "batch-sync" else set())
