"""Gradients pass through an agent one after another; no network, no switch."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_host.training import Aggregate, Exchange, JobCoding
from kofn_torch.exchange import GradientExchange

pytestmark = pytest.mark.torch


def test_gradient_with_a_known_mean_does_not_wait() -> None:
    """It is contributed late and does not count, and no iteration ends meanwhile."""
    coding = JobCoding.of(JobSection(), CompressSection(), 4)
    agent: Any = SimpleNamespace(iteration=2, all_reduce=lambda given, missed: Exchange(handed_s=1.0, age=1))
    exchange = GradientExchange(agent, coding, 9)
    known = Aggregate.of_all(1, np.ones(4, np.float32), 3, coding.planner.first())
    found = exchange.begin(1, known).result(5)
    assert (found.updates, found.late) == ([known], True)
    assert (exchange.wait(0, 4) == 1).all()
    exchange.close()
