"""The communication hook against PyTorch's all-reduce by gloo, with all of DDP's options, through a real switch."""

import time
import tracemalloc
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import kofn_torch
from kofn_common.config.late_rules import LatePolicy
from kofn_host.arrays import fingerprint
from kofn_torch.job import TorchJob
from kofn_torch.layout import ParameterLayout
from tests.pytorch import devices
from tests.pytorch.crew import SwitchedJob, crew, ddp, gloo_group, loaded, parameters_of
from tests.system.collectives.switched import HOSTS

pytestmark = pytest.mark.torch

BATCH, STEPS = 16, 12


class Branches(nn.Module):
    """A model with two branches; a forward pass uses one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Linear(64, 48), nn.Linear(48, 10), nn.Linear(48, 10)
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        branch = self.left if self.calls % 2 else self.right
        hidden: torch.Tensor = torch.relu(self.first(images))
        return branch(hidden)


class Scaled(nn.Sequential):
    """A model with a parameter of no dimensions, and some of no elements."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        self.scale, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.empty(0))
        self[0].none = nn.Parameter(torch.empty(2, 0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(images) * self.scale + self.none.sum() + self[0].none.sum()
        return out


class Differentiated(nn.Module):
    """A model with a checkpoint, and with an input gradient that is differentiated again where checkpoints permit."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(64, 48), nn.Linear(48, 10), reentrant

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images.requires_grad_()
        out: torch.Tensor = self.last(checkpoint(self.first, images, use_reentrant=self.reentrant).tanh())
        if self.reentrant:
            return out
        (gradient,) = torch.autograd.grad(out.square().sum(), images, create_graph=True)
        return out + gradient.mean()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


@dataclass(frozen=True)
class Case:
    """A use of DDP; `accumulate`: batches a step; `more`: further batches by rank, in join()."""

    make: Callable[[], nn.Module] = layers
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    tolerance: float = 1e-5
    steps: int = STEPS
    accumulate: int = 1
    more: int = 0

    def train(self, model: DistributedDataParallel, rank: int, attach: Callable[[], Any]) -> list[float]:
        """Train and return all losses."""
        attach()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        data, losses = torch.Generator().manual_seed(rank), []
        with model.join() if self.more else nullcontext():
            for step in range(1, self.accumulate * (self.steps + self.more * rank) + 1):
                images = torch.randn(BATCH, 64, generator=data).to(self.dtype)
                labels = torch.randint(0, 10, (BATCH,), generator=data)
                last = step % self.accumulate == 0
                with nullcontext() if last else model.no_sync():
                    loss = nn.functional.cross_entropy(model(images).float(), labels)
                    loss.backward()
                losses.append(loss.item())
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
        return losses


CASES = {
    "one bucket": Case(),
    "many buckets": Case(options={"bucket_cap_mb": 0.01}),
    "gradient_as_bucket_view": Case(options={"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}),
    "static_graph": Case(options={"bucket_cap_mb": 0.01, "static_graph": True}),
    "find_unused_parameters": Case(make=Branches, options={"bucket_cap_mb": 0.01, "find_unused_parameters": True}),
    "no_sync": Case(options={"bucket_cap_mb": 0.01}, accumulate=3),
    "join": Case(options={"bucket_cap_mb": 0.01}, more=3),
    "reentrant checkpoint": Case(make=lambda: Differentiated(reentrant=True), options={"bucket_cap_mb": 0.01}),
    "gradient penalty": Case(make=lambda: Differentiated(reentrant=False), options={"bucket_cap_mb": 0.01}),
    "empty parameters": Case(make=Scaled),
    "empty buckets": Case(make=Scaled, options={"bucket_cap_mb": 1e-6}),
    "float16": Case(dtype=torch.float16, tolerance=5e-3),
    "bfloat16": Case(options={"bucket_cap_mb": 0.01}, dtype=torch.bfloat16, tolerance=5e-2),
}


def compared(case: Case, folder: Path) -> None:
    """Train by gloo and by the switch. Losses agree within the case's tolerance, and replicas are equal bit for bit."""
    stores = dist.HashStore(), dist.HashStore()

    def make() -> nn.Module:
        return case.make().to(case.dtype)

    def train(job: SwitchedJob) -> tuple[list[float], list[float], bytes]:
        by_gloo, by_switch = (
            ddp(make, process_group=group, **case.options)
            for group in [gloo_group(store, job.rank, HOSTS) for store in stores]
        )
        wanted = case.train(by_gloo, job.rank, lambda: None)
        found = case.train(by_switch, job.rank, lambda: sessions.append(kofn_torch.ddp_hook(by_switch, job=job)))
        return wanted, found, parameters_of(by_switch)

    sessions: list[kofn_torch.Session] = []
    with crew(folder, case.steps + case.more * (HOSTS - 1)) as made:
        trained = made.all(train)
        for session in sessions:
            session.close()
    for wanted, found, parameters in trained:
        assert found == pytest.approx(wanted, rel=case.tolerance)
        assert parameters == trained[0][2]
    assert [job.left for job in made.jobs] == ["iterations"] * HOSTS


@pytest.mark.parametrize("name", CASES)
def test_training_equals_gloos(name: str, tmp_path: Path) -> None:
    compared(CASES[name], tmp_path)


@pytest.mark.parametrize("factor", [1e-9, 1e-4, 1e4, 65536.0])
def test_loss_of_any_scale_trains_as_by_gloo(factor: float, tmp_path: Path) -> None:
    """A GradScaler, or a division by tokens, scales the loss; the optimizer divides by the factor."""
    store = dist.HashStore()

    def train(job: SwitchedJob) -> tuple[list[float], list[float], bytes]:
        by_gloo, by_switch = ddp(layers, process_group=gloo_group(store, job.rank, HOSTS)), ddp(layers)
        found = list[list[float]]()
        for model in (by_gloo, by_switch):
            session = kofn_torch.ddp_hook(model, job=job) if model is by_switch else None
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05 / factor, momentum=0.9)
            data, losses = torch.Generator().manual_seed(job.rank), list[float]()
            for _ in range(STEPS):
                images, labels = torch.randn(BATCH, 64, generator=data), torch.randint(0, 10, (BATCH,), generator=data)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                (factor * loss).backward()
                optimizer.step()
                losses.append(loss.item())
            found.append(losses)
            if session is not None:
                session.close()
        return found[0], found[1], parameters_of(by_switch)

    with crew(tmp_path, STEPS) as made:
        trained = made.all(train)
    for wanted, found, parameters in trained:
        assert found == pytest.approx(wanted, rel=1e-3)
        assert parameters == trained[0][2]


def copied(model: nn.Module) -> Any:
    return AveragedModel(model)


@pytest.mark.parametrize("copy", [copied, loaded])
def test_copy_of_a_model_has_no_session(copy: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    """The copy is of the whole DistributedDataParallel during training, as for a moving average."""

    def train(job: SwitchedJob) -> tuple[bytes, bytes]:
        model, images = ddp(layers), torch.ones(BATCH, 64)
        with closing(kofn_torch.ddp_hook(model, job=job)):
            model(images).square().mean().backward()
            other = copy(model)
            other(images).square().mean().backward()
            with torch.no_grad():
                for each in other.parameters():
                    each.zero_()
            model(images).square().mean().backward()
        for _ in range(3):  # after the training the copy has no trace of it either
            model.module(images).square().mean().backward()
        return parameters_of(model), parameters_of(ddp(layers))

    with crew(tmp_path, 2) as made:
        assert all(found == wanted for found, wanted in made.all(train))
    assert [job.left for job in made.jobs] == ["iterations"] * HOSTS


@pytest.mark.skipif(devices.KIND == "pretend", reason="PyTorch compiles no process group of Python")
@pytest.mark.filterwarnings("ignore")  # PyTorch warns about itself
def test_session_of_a_compiled_model_is_not_compiled(tmp_path: Path) -> None:
    """Otherwise each value of a norm would take a graph, up to PyTorch's limit."""
    graphs = list[Any]()

    def count(graph: Any, given: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def train(job: SwitchedJob) -> None:
        model = ddp(Scaled)
        compiled = torch.compile(model, backend=count) if job.rank == 0 else model
        with closing(kofn_torch.ddp_hook(model, job=job)):
            for step in range(STEPS):
                compiled(torch.full((BATCH, 64), step + 1.0)).square().mean().backward()

    with crew(tmp_path, STEPS) as made:
        made.all(train)
    assert len(graphs) == 1


def statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))


@pytest.mark.parametrize(
    ("make", "options"),
    [(layers, {}), (layers, {"static_graph": True}), (statistics, {})],
    ids=["buckets are rebuilt", "static graph", "buffers are broadcast"],
)
def test_late_worker_does_not_wait_for_workers_that_wait_for_it(
    make: Callable[[], nn.Module], options: dict[str, Any], tmp_path: Path
) -> None:
    """If DDP makes all workers meet, a gradient that counts in a later iteration must not wait for that iteration's
    end.
    """
    store = dist.HashStore()

    def train(job: SwitchedJob) -> bytes:
        model = ddp(make, process_group=gloo_group(store, job.rank, HOSTS), **options)
        with closing(kofn_torch.ddp_hook(model, job=job)):
            job.agent.set_late_policy(LatePolicy(rule="async"))
            optimizer, data = torch.optim.SGD(model.parameters(), lr=0.05), torch.Generator().manual_seed(job.rank)
            for _ in range(STEPS):
                loss = model(torch.randn(BATCH, 64, generator=data)).square().mean()
                optimizer.zero_grad()
                time.sleep(0.03 * (job.rank == 0))
                loss.backward()
                optimizer.step()
        return parameters_of(model)

    with crew(tmp_path, STEPS, k=2, give_up_s=5.0) as made:
        trained = made.all(train)
    assert trained == trained[:1] * HOSTS


@pytest.mark.long
def test_two_hundred_steps_equal_gloos(tmp_path: Path) -> None:
    compared(Case(steps=200), tmp_path)


def test_bucket_is_averaged_while_backward_continues(tmp_path: Path) -> None:
    """The first layer's backward pass waits for the last layer's mean."""

    def train(job: SwitchedJob) -> list[float]:
        model = ddp(layers, bucket_cap_mb=0.01)
        session = kofn_torch.ddp_hook(model, job=job)
        last, waited = model.module[-1].bias, list[float]()

        def wait(module: nn.Module, *gradients: Any) -> None:
            if session.iteration >= crewed.first:  # DDP rebuilds its buckets after the first iteration
                stream = session._exchange._stream
                waited.append(float(stream.wait(0, last.numel(), 10).sum()))

        model.module[1].register_full_backward_hook(wait)
        for _ in range(3):
            model(torch.full((BATCH, 64), job.rank + 1.0)).square().mean().backward()
            sums.append((job.rank, last.grad.sum().item()))
            model.zero_grad()
        session.close()
        return waited

    sums: list[tuple[int, float]] = []
    with crew(tmp_path, 3) as crewed:
        waited = crewed.all(train)
    wanted = {round(each, 3) for _, each in sums[HOSTS:]}
    assert [len(each) for each in waited] == [2] * HOSTS
    assert {round(each, 3) for one in waited for each in one} == wanted


def test_fingerprint_covers_all_parameters_in_any_memory_layout() -> None:
    model = nn.ParameterDict({"apart": torch.arange(6.0)[::2], "across": torch.arange(6.0).view(2, 3).t()})
    layout = ParameterLayout(model)
    assert layout.values().tolist() == [0, 2, 4, 0, 3, 1, 4, 2, 5]
    assert fingerprint(*layout.flat_parameters()) == fingerprint(layout.values())


def test_iterations_allocate_no_memory_for_gradient_and_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means take the place of the bucket's values. An iteration takes less than 0.6 gradients at each worker."""

    def reduce(session: kofn_torch.Session, bucket: dist.GradBucket) -> Any:
        values = bucket.buffer()
        return reduced(session, bucket).then(lambda means: places.append((means.value(), values)) or means.value())

    def train(job: SwitchedJob) -> int:
        model = ddp(lambda: nn.Linear(1024, 1024, bias=False))
        with closing(kofn_torch.ddp_hook(model, job=job)) as session:
            for _ in range(STEPS):
                model(torch.full((BATCH, 1024), job.rank + 1.0)).square().mean().backward()
                if session.iteration == crewed.first + 1 and not job.rank:
                    tracemalloc.start()
                    tracemalloc.reset_peak()
        return session.layout.elements * 4

    places: list[tuple[torch.Tensor, torch.Tensor]] = []
    reduced = kofn_torch.Session.reduce
    monkeypatch.setattr(kofn_torch.Session, "reduce", reduce)
    try:
        with crew(tmp_path, STEPS) as crewed:
            (gradient_bytes, *_) = crewed.all(train)
        assert tracemalloc.get_traced_memory()[1] < HOSTS * gradient_bytes * 0.6
    finally:
        tracemalloc.stop()
    assert all(means.data_ptr() == values.data_ptr() for means, values in places)


def test_slow_worker_without_elastic_gets_every_mean_in_order(tmp_path: Path) -> None:
    """With k = 2 of 3, the means that it missed are ready for its next backward passes."""

    def train(job: SwitchedJob) -> bytes:
        model = ddp(layers)
        with closing(kofn_torch.ddp_hook(model, job=job)) as session:
            optimizer = torch.optim.Adam(model.parameters())
            for step in range(STEPS):
                time.sleep(0.05 * (job.rank == 0))
                model(torch.full((BATCH, 64), job.rank + step / 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert session.done()
        return parameters_of(model)

    with crew(tmp_path, STEPS, k=2) as crewed:
        parameters = crewed.all(train)
    assert parameters == [parameters[0]] * HOSTS
    assert max(report.iterations_behind for report in crewed.jobs[0].reports) > 1


_: type[TorchJob] = SwitchedJob
