"""What the controller expects of an iteration under each policy for late gradients."""

import numpy as np
import pytest

from controller.decide import Decider
from controller.measure import Report
from run.config import Late, Policy


@pytest.mark.parametrize("late", ["finish", "abort"])
def test_who_gives_up_carries_nothing_over(late: Late) -> None:
    decider, random = Decider(workers=3, policy=Policy(late=late)), np.random.default_rng(1)
    for iteration in range(1, 20):
        for rank in range(3):
            time_s = 0.010 + 0.005 * random.poisson(2)
            assert decider.report(rank, Report(iteration=iteration, first_block_s=time_s), 0.02 * iteration)
    decider.decide(1.0)
    assert decider.choice is not None
    assert decider.prediction is not None
    forecast = decider.choice.forecast
    longer = forecast.predicted_s - forecast.expected_s
    assert np.all(longer[:2] > 1e-4) if late == "finish" else np.all(longer == 0)
    assert np.any(decider.prediction.error_s) == (late == "finish")
