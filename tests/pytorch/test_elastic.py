"""Elastic trainings through a real switch: slow workers, schedulers, clipping, averages; replicas equal bit for bit."""

import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import kofn_torch
from tests.pytorch.crew import Crew, SwitchedJob, crew, ddp, parameters_of
from tests.pytorch.test_hook import BATCH, layers
from tests.system.collectives.switched import HOSTS

pytestmark = pytest.mark.torch

ITERATIONS, SLOW = 60, 2


class Trained:
    """A worker's training; gradients take `slow_s` longer at worker SLOW."""

    def __init__(self, job: SwitchedJob, make: Callable[[Any], torch.optim.Optimizer], **options: Any) -> None:
        self.job, self.model, self.own = job, ddp(layers, bucket_cap_mb=0.01, **options), 0
        self.optimizer = make(self.model.parameters())
        self.average: AveragedModel | None = None

    def run(self, scheduler: Any = None, slow_s: float = 0.03, **elastic: Any) -> "Trained":
        data = torch.Generator().manual_seed(self.job.rank)
        made = kofn_torch.elastic(self.model, self.optimizer, scheduler, job=self.job, **elastic)
        with closing(made) as session:
            while not session.done():
                images, labels = torch.randn(BATCH, 64, generator=data), torch.randint(0, 10, (BATCH,), generator=data)
                loss = nn.functional.cross_entropy(self.model(images), labels)
                self.optimizer.zero_grad()
                time.sleep(slow_s if self.job.rank == SLOW else 0.003)
                loss.backward()
                self.optimizer.step()
                self.own += 1
        return self

    def clip(self) -> None:
        clip_grad_norm_(self.model.parameters(), 0.1)


def trained(folder: Path, train: Callable[[SwitchedJob], Trained], k: int = 2) -> tuple[Crew, list[Trained]]:
    with crew(folder, ITERATIONS, k=k) as made:
        workers = made.all(train)
    assert [parameters_of(each.model) for each in workers] == [parameters_of(workers[0].model)] * HOSTS
    assert 0 < workers[SLOW].own < min(workers[0].own, workers[1].own), (
        "the slow worker must take some steps of its own, and others of its peers"
    )
    return made, workers


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "Adagrad" else ()) for name in OPTIMIZERS]
)
def test_slow_worker_ends_with_the_others(name: str, tmp_path: Path) -> None:
    made, _ = trained(tmp_path, lambda job: Trained(job, OPTIMIZERS[name]).run())
    assert [job.left for job in made.jobs] == ["iterations"] * HOSTS
    assert [len(path.read_text().splitlines()) for path in sorted(tmp_path.glob("*.jsonl"))] == [ITERATIONS + 1] * HOSTS


def test_scheduler_steps_in_every_iteration(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> Trained:
        worker = Trained(job, OPTIMIZERS["SGD"], gradient_as_bucket_view=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(worker.optimizer, 0.1, total_steps=ITERATIONS + 1)
        return worker.run(scheduler)

    rates = [each.optimizer.param_groups[0]["lr"] for each in trained(tmp_path, train)[1]]
    assert rates == [rates[0]] * HOSTS
    assert rates[0] < 1e-4


def test_before_step_sets_the_rate_of_every_iteration(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> Trained:
        worker = Trained(job, OPTIMIZERS["SGD"])
        steps = count(2)
        return worker.run(before_step=lambda: worker.optimizer.param_groups[0].update(lr=0.1 / next(steps)))

    rates = [each.optimizer.param_groups[0]["lr"] for each in trained(tmp_path, train)[1]]
    assert rates == [0.1 / (ITERATIONS + 1)] * HOSTS


def test_chained_scheduler_steps_in_every_iteration(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> Trained:
        worker = Trained(job, OPTIMIZERS["SGD"])
        warm_up = torch.optim.lr_scheduler.LinearLR(worker.optimizer, 0.1, total_iters=ITERATIONS)
        decay = torch.optim.lr_scheduler.ExponentialLR(worker.optimizer, 0.9)
        return worker.run(torch.optim.lr_scheduler.ChainedScheduler([warm_up, decay]))

    for each in trained(tmp_path, train)[1]:
        assert each.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.9**ITERATIONS)


def test_clipping_and_a_moving_average_apply_to_every_iteration(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> Trained:
        worker = Trained(job, OPTIMIZERS["AdamW"])
        worker.average = average = AveragedModel(worker.model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        return worker.run(
            before_step=worker.clip, after_step=lambda: average.update_parameters(worker.model.module), also=[average]
        )

    averages = [parameters_of(each.average) for each in trained(tmp_path, train)[1]]
    assert averages == [averages[0]] * HOSTS


def images() -> nn.Module:
    convolutions = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    return convolutions.to(memory_format=torch.channels_last)


def test_parameters_in_another_memory_format_train_and_are_restored(tmp_path: Path) -> None:
    """All workers have the same data, so the means are a worker's own gradients. A replica is restored, too."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))).square().mean().backward()
        optimizer.step()

    def train(job: SwitchedJob) -> DistributedDataParallel:
        model = ddp(images)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with closing(kofn_torch.elastic(model, optimizer, job=job)):
            for number in range(4):
                step(model, optimizer, number)
        return model

    usual = ddp(images).module
    for number in range(4):
        step(usual, torch.optim.SGD(usual.parameters(), lr=0.1), number)
    with crew(tmp_path, 4) as made:
        found = made.all(train)
        given, fresh = made.jobs[0].replica.state(), ddp(images)
        session = kofn_torch.Session(fresh, made.jobs[1])
        session.replica.parts = {"optimizer": torch.optim.SGD(fresh.parameters(), lr=0.1)}
        assert given is not None
        session.replica.restore(given)
    for model in (*found, fresh):
        assert all(
            torch.allclose(one.cpu(), other.cpu(), atol=1e-6)
            for one, other in zip(model.parameters(), usual.parameters(), strict=True)
        )


def test_another_worker_can_continue_from_a_replica(tmp_path: Path) -> None:
    """A peer's state after some iterations is restored in a fresh model."""

    def train(job: SwitchedJob) -> Trained:
        worker = Trained(job, OPTIMIZERS["AdamW"])
        return worker.run(torch.optim.lr_scheduler.StepLR(worker.optimizer, 5))

    made, workers = trained(tmp_path, train)
    given = made.jobs[0].replica.state()
    assert given is not None
    fresh = Trained(made.jobs[1], OPTIMIZERS["AdamW"])
    scheduler = torch.optim.lr_scheduler.StepLR(fresh.optimizer, 5)
    session = kofn_torch.Session(fresh.model, made.jobs[1])
    session.replica.parts = {"optimizer": fresh.optimizer, "scheduler": scheduler}
    session.replica.restore(given)
    assert session.iteration == given.iteration == made.first + ITERATIONS - 1
    assert parameters_of(fresh.model) == parameters_of(workers[0].model)
    assert scheduler.last_epoch == ITERATIONS
    moments = [
        [state["exp_avg"].sum().item() for state in each.optimizer.state.values()] for each in (fresh, workers[0])
    ]
    assert moments[0] == moments[1]
