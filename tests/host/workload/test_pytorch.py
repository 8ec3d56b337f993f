"""PyTorch modules as workloads."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from kofn_common.config.schema import Config
from kofn_host.compression.plan import Planner
from kofn_host.workload.replica import Replica

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch

from kofn_host.workload.pytorch import TorchWorkload

pytestmark = pytest.mark.torch

PLAN = Planner(blocks=1, widths=(32,)).first()
NOTHING = np.zeros(1, np.int64)
CONFIG = Config.parse("[run]\nseed = 7")


class Small(TorchWorkload):
    """A module with a used layer and an unused parameter."""

    extra: list[torch.nn.Module] = []  # noqa: RUF012

    def build_module(self) -> Any:
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), *self.extra)
        module.unused = torch.nn.Parameter(torch.ones(2))
        return module

    def build_optimizer(self) -> Any:
        return torch.optim.Adam(self.module.parameters(), lr=0.1, weight_decay=0.01)

    def loss(self, iteration: int, batch: int) -> Any:
        return self.module(torch.full((4, 3), float(iteration + batch))).square().mean()

    def evaluate(self) -> float:
        return self.module(torch.ones(1, 3)).sum().item()


def test_parameters_are_shared_and_the_gradient_is_autograds() -> None:
    small = Small(CONFIG, 0)
    assert small.parameters.dtype == np.float32 and small.parameters.size == 3 * 2 + 2 + 2
    small.parameters[:] = np.arange(10)
    assert small.module[0].weight.tolist() == [[2, 3, 4], [5, 6, 7]], "the weights come after the two unused parameters"
    loss, gradient = small.gradient(1)
    small.module.zero_grad()
    small.loss(1, 0).backward()
    wanted = [torch.zeros_like(p) if p.grad is None else p.grad for p in small.module.parameters()]
    assert np.array_equal(gradient, torch.cat([each.reshape(-1) for each in wanted]).numpy())
    assert loss == small.loss(1, 0).item() and gradient.any()


def test_step_equals_that_of_the_optimizer_alone() -> None:
    """The same module and optimizer without kofn give the same bits."""
    small = Small(CONFIG, 0)
    torch.manual_seed(7)
    alone = torch.nn.Sequential(torch.nn.Linear(3, 2))
    alone.unused = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.1, weight_decay=0.01)
    for iteration in range(1, 6):
        _, gradient = small.gradient(iteration)
        assert small.optimizer is not None
        small.optimizer.step(gradient)
        start = 0
        for parameter in alone.parameters():
            part = gradient[start : start + parameter.numel()]
            parameter.grad, start = torch.from_numpy(part.copy()).view_as(parameter), start + parameter.numel()
        optimizer.step()
    assert np.array_equal(small.parameters, torch.cat([p.detach().reshape(-1) for p in alone.parameters()]).numpy())


def test_replicas_begin_equal_and_a_joining_one_continues_equal() -> None:
    old, young = (Replica(Small(CONFIG, rank), CONFIG, 1, PLAN) for rank in (0, 1))
    gradient = np.linspace(-1, 1, 10).astype(np.float32)
    for iteration in (1, 2, 3):
        old.apply(iteration, gradient, NOTHING, PLAN)
    state = old.state()
    assert state is not None
    young.restore(state)
    assert old.apply(4, gradient, NOTHING, PLAN) == young.apply(4, gradient, NOTHING, PLAN)


def test_modules_that_would_differ_between_workers_are_refused() -> None:
    class Normed(Small):
        extra = [torch.nn.BatchNorm1d(2)]  # noqa: RUF012

    with pytest.raises(TypeError, match=r"1.running_mean must not change while a gradient is computed"):
        Normed(CONFIG, 0).gradient(1)

    class Double(Small):
        extra = [torch.nn.Linear(2, 2).double()]  # noqa: RUF012

    with pytest.raises(TypeError, match=r"1.weight must be torch.float32 on cpu, got torch.float64 on cpu"):
        Double(CONFIG, 0)
