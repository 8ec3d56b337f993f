"""Replicas are equal in their whole state_dict(), including frozen parameters and buffers."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn

import kofn_torch
from kofn_common.config.schema import Config
from kofn_host.collectives import Communicator, Ring
from kofn_torch.errors import TorchError
from kofn_torch.peers import BucketSum, CommunicatorSum, GroupSum
from kofn_torch.zero_job import GroupZero
from tests.pytorch.crew import SwitchedJob, crew, ddp, gloo_group
from tests.pytorch.test_peers import PeerJob
from tests.pytorch.test_schedule import scheduled
from tests.pytorch.test_zero import Job
from tests.system.collectives.crews import addresses, threads
from tests.system.collectives.switched import HOSTS
from tests.system.zero.crews import all_of

pytestmark = pytest.mark.torch

BATCH = torch.ones(4, 8)

OTHER: dict[str, Callable[[nn.Module], object]] = {
    "frozen parameter": lambda model: model.get_parameter("0.weight").detach().add_(1),
    "buffer": lambda model: model.get_buffer("scale").add_(0.5),
    "buffer of integers": lambda model: model.get_buffer("count").add_(1),
    "buffer that is not persistent": lambda model: model.get_buffer("cache").add_(1),
    "buffer of bfloat16": lambda model: model.get_buffer("narrow").add_(1),
}
"""Changes that make a model another one without another trained parameter."""


class Adapted(nn.Sequential):
    """A frozen layer and a trained one, and buffers of several dtypes, one of them strided."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 4))
        self.register_buffer("scale", torch.ones(4, 6).t())
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("narrow", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("none", torch.empty(0))
        self.register_buffer("cache", torch.ones(2), persistent=False)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def attached(how: str, job: SwitchedJob, change: Callable[[nn.Module], object]) -> Callable[[], object]:
    """Return a function that makes an iteration with a model that worker 1 has changed."""
    model = ddp(Adapted)
    if job.rank == 1:
        change(model.module)
    if how == "schedule":
        session = kofn_torch.schedule(model.module, optimizer_of(model), job=job)

        def scheduled() -> None:
            session.backward(model.module(BATCH).square().mean())
            session.finish()

        return scheduled
    optimizer = optimizer_of(model)
    if how == "elastic":
        kofn_torch.elastic(model, optimizer, job=job)
    else:
        kofn_torch.ddp_hook(model, job=job)

    def step() -> None:
        with suppress(RuntimeError):  # DDP's error, without its type
            model(BATCH).square().mean().backward()
        optimizer.step()
        model(BATCH)

    return step


@pytest.mark.parametrize("other", OTHER)
@pytest.mark.parametrize("how", ["elastic", "ddp_hook", "schedule"])
def test_another_state_at_one_worker_is_an_error_at_all_workers(how: str, other: str, tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> str:
        step = attached(how, job, OTHER[other])
        with pytest.raises(TorchError) as caught:
            step()
        return str(caught.value)

    with crew(tmp_path, 2, give_up_s=5.0) as made:
        scheduled(made, **({"family": "priority"} if how == "schedule" else {}))
        found = made.all(run)
    for rank, words in enumerate(found):
        assert words.startswith(f"worker {1 if rank != 1 else 0} began with other parameters or buffers")


def test_other_shapes_of_frozen_state_are_another_model(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> str:
        step = attached(
            "elastic",
            job,
            lambda model: model.register_buffer("more", torch.zeros(2, device=next(model.parameters()).device)),
        )
        with pytest.raises(TorchError) as caught:
            step()
        return str(caught.value)

    with crew(tmp_path, 2, give_up_s=5.0) as made:
        assert all("got another model of" in words for words in made.all(run))


@pytest.mark.parametrize("kind", ["ring", "gloo"])
def test_another_state_is_detected_without_a_switch(kind: str, tmp_path: Path) -> None:
    config = Config.of({"job": {"workers": HOSTS, "collective": kind}, "torch": {"script": "train.py"}})
    there, store = addresses(HOSTS), dist.HashStore()

    def run(rank: int) -> str:
        model = ddp(Adapted, **({"process_group": gloo_group(store, rank, HOSTS)} if kind == "gloo" else {}))
        if rank == 1:
            OTHER["buffer"](model.module)

        def connect() -> BucketSum:
            return GroupSum(model.process_group) if kind == "gloo" else CommunicatorSum(Ring(rank, there))

        with pytest.raises(TorchError) as caught:
            kofn_torch.ddp_hook(model, job=PeerJob(config, rank, tmp_path / f"{rank}.jsonl", connect))
        return str(caught.value)

    with ThreadPoolExecutor(HOSTS) as pool:
        assert all("began with other parameters or buffers" in words for words in pool.map(run, range(HOSTS)))


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("kind", ["ring", "gloo"])
def test_sharded_training_begins_with_worker_0s_state(kind: str, stage: int) -> None:
    store, models = dist.HashStore(), [Adapted(), Adapted()]
    begins = models[0][0].weight.tolist()

    def run(job: Any, rank: int) -> dict[str, Any]:
        model = models[rank]
        with torch.no_grad():
            model.scale.copy_(torch.arange(24).reshape(6, 4) + rank)
            model.narrow += rank
            model.cache += rank
        model.count += rank
        optimizer = kofn_torch.zero(model, stage=stage, bits=32, job=job)
        with optimizer.whole_parameters():
            return {name: each.tolist() for name, each in [*model.state_dict().items(), ("cache", model.cache)]}

    def over_ring(one: Communicator) -> dict[str, Any]:
        return run(Job(one), one.rank)

    if kind == "ring":
        with threads("ring", 2) as workers:
            found = workers.run(over_ring)
    else:
        found = all_of(2, lambda rank: run(GroupZero(gloo_group(store, rank, 2)), rank))
    assert found[0] == found[1]
    assert found[0]["0.weight"] == begins
    assert (found[0]["count"], found[0]["scale"][1], found[0]["cache"]) == (3, [4, 5, 6, 7], [1, 1])


def test_replica_of_another_worker_has_its_buffers_and_frozen_parameters(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> None:
        model = ddp(Adapted)
        optimizer = optimizer_of(model)
        kofn_torch.elastic(model, optimizer, job=job).close()

    with crew(tmp_path, 1) as made:
        made.all(run)
        given = made.jobs[0].replica.state()
        model = ddp(Adapted)
        wanted = {name: each.clone() for name, each in model.module.state_dict().items()}
        for change in OTHER.values():
            change(model.module)
        session = kofn_torch.Session(model, made.jobs[1])
        session.replica.parts = {"optimizer": optimizer_of(model)}
        assert given is not None
        session.replica.restore(given)
    assert all(torch.equal(each, wanted[name]) for name, each in model.module.state_dict().items())


def test_later_differences_are_in_the_check_of_replicas(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> list[str]:
        model = ddp(Adapted)
        with closing(kofn_torch.ddp_hook(model, job=job)):
            for step in range(2):
                model(BATCH).square().mean().backward()
                if step and job.rank == 1:
                    OTHER["frozen parameter"](model.module)
        return [json.loads(line)["params"] for line in job.metrics.read_text().splitlines()[:-1]]

    with crew(tmp_path, 2) as made:
        first, second, third = made.all(run)
    assert first == third
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_cache_that_one_worker_rebuilds_is_no_difference(tmp_path: Path) -> None:
    """For example, the angles of positions, for a longer text."""

    def run(job: SwitchedJob) -> list[str]:
        model = ddp(Adapted)
        with closing(kofn_torch.ddp_hook(model, job=job)):
            for step in range(2):
                if step and job.rank == 1:
                    model.module.register_buffer("cache", torch.ones(5), persistent=False)
                model(BATCH).square().mean().backward()
        return [json.loads(line)["params"] for line in job.metrics.read_text().splitlines()[:-1]]

    with crew(tmp_path, 2) as made:
        found = made.all(run)
    assert found == [found[0]] * HOSTS


def normed() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(8), lambda: nn.InstanceNorm1d(8, track_running_stats=True)])
def test_statistics_of_a_workers_own_batches_are_refused(layer: Callable[[], nn.Module], tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), layer())

    with crew(tmp_path, 1) as made:
        scheduled(made, family="priority")
        (job, plain, *_), model = made.jobs, ddp(make)
        scheduled_model = make()
        config = Config.of({"job": {"workers": HOSTS}})
        plain.config = config
        tries: tuple[Callable[[], object], ...] = (
            lambda: kofn_torch.ddp_hook(model, job=plain),
            lambda: kofn_torch.elastic(model, optimizer_of(model), job=plain),
            lambda: kofn_torch.schedule(scheduled_model, optimizer_of(scheduled_model), job=job),
            *(lambda stage=stage: kofn_torch.zero(make(), stage=stage, bits=32) for stage in (1, 2, 3)),
        )
        for attempt in tries:
            with pytest.raises(TorchError, match="1 keeps statistics of batches, which differ"):
                attempt()


def test_fixed_or_missing_statistics_are_accepted() -> None:
    with threads("ring", 1) as workers:
        for layer in (nn.BatchNorm1d(8).eval(), nn.BatchNorm1d(8, track_running_stats=False)):
            kofn_torch.zero(nn.Sequential(nn.Linear(8, 8), layer), bits=32, job=Job(workers.communicators[0]))


@pytest.mark.parametrize("changed", [False, True])
def test_ddp_synchronises_statistics_in_a_group_of_all_workers(changed: bool, tmp_path: Path) -> None:
    """All other state must be equal after every iteration."""
    config = Config.of(
        {"job": {"workers": HOSTS, "collective": "gloo"}, "run": {"max_iterations": 3}, "torch": {"script": "train.py"}}
    )
    store = dist.HashStore()

    def run(rank: int) -> list[str]:
        torch.manual_seed(rank)
        model = ddp(normed, process_group=gloo_group(store, rank, HOSTS))
        metrics = tmp_path / f"{rank}.jsonl"
        session = kofn_torch.ddp_hook(model, job=PeerJob(config, rank, metrics, lambda: GroupSum(model.process_group)))
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
            if changed and rank == 1:
                model.module[0].bias.detach().add_(1)
        session.close()
        return [json.loads(line)["params"] for line in metrics.read_text().splitlines()[:-1]]

    with ThreadPoolExecutor(HOSTS) as pool:
        found = list(pool.map(run, range(HOSTS)))
    assert (found == [found[0]] * HOSTS) is not changed


@pytest.mark.parametrize("how", [kofn_torch.elastic, kofn_torch.schedule])
def test_optimizer_has_only_the_models_parameters(how: Any, tmp_path: Path) -> None:
    loss_weight = nn.Parameter(torch.ones(3))
    with crew(tmp_path, 1) as made:
        scheduled(made, **({"family": "priority"} if how is kofn_torch.schedule else {}))
        model = ddp(Adapted)
        given = model.module if how is kofn_torch.schedule else model
        with pytest.raises(
            TorchError, match=r"must have only the model's parameters, got another parameter of shape \(3,\)"
        ):
            how(given, torch.optim.SGD([*model.parameters(), loss_weight], lr=0.1), job=made.jobs[0])
