"""Trainings on an accelerator: no training thread waits for it, nothing is allocated later, errors have names."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import kofn_torch
from bench import accelerator
from kofn_torch.errors import TorchError
from kofn_torch.layout import ParameterLayout
from kofn_torch.staging import PIECE, Staging, device_of, digests
from tests.pytorch import devices, pretend
from tests.pytorch.crew import SwitchedJob, crew, ddp, group_of_one, parameters_of
from tests.pytorch.test_schedule import scheduled
from tests.system.collectives.switched import HOSTS

pytestmark = pytest.mark.torch

STEPS = 6

pretended = pytest.mark.skipif(devices.KIND != "pretend", reason="a real device counts no waits and is not broken")


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    yield
    devices.start()


def unexpected(error: Exception) -> None:
    raise error


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


class Trained:
    """A training whose model, loss and data are on a device; `waits` and `pinned` are counted at each step's end."""

    def __init__(self, job: SwitchedJob, how: str, loss: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.job, self.how, self.device = job, how, devices.place()
        self.model = ddp(layers, bucket_cap_mb=0.01)
        for hooks in (self.model.module._forward_pre_hooks, self.model.module._forward_hooks):
            hooks.clear()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.waits, self.pinned = list[int](), list[int]()

    def run(self) -> "Trained":
        data = torch.Generator().manual_seed(self.job.rank)
        batches = [torch.randn(16, 64, generator=data).to(self.device) for _ in range(STEPS)]
        with closing(self.attached()) as session:
            for images in batches:
                self.optimizer.zero_grad()
                loss = (self.called(images) - 1).square().mean()
                if self.how == "schedule":
                    session.backward(loss)
                else:
                    loss.backward()
                    self.optimizer.step()
                if devices.KIND == "pretend":
                    self.waits.append(pretend.waits())
                    self.pinned.append(pretend.pinned())
        return self

    def attached(self) -> Any:
        self.called: nn.Module = self.model
        if self.how == "schedule":
            self.called = self.model.module
            return kofn_torch.schedule(self.called, self.optimizer, job=self.job)
        if self.how == "elastic":
            return kofn_torch.elastic(self.model, self.optimizer, job=self.job)
        return kofn_torch.ddp_hook(self.model, job=self.job)


HOW = ["ddp_hook", "elastic", "schedule"]


def trained(how: str, folder: Path) -> list[Trained]:
    with crew(folder, STEPS) as made:
        scheduled(made, **({"family": "priority"} if how == "schedule" else {}))
        return made.all(lambda job: Trained(job, how).run())


@pytest.mark.threads
@pretended
@pytest.mark.parametrize("how", HOW)
def test_training_thread_never_waits_for_the_device_and_nothing_is_allocated_later(how: str, tmp_path: Path) -> None:
    found = trained(how, tmp_path)
    for each in found:
        assert each.waits[1:] == each.waits[1:2] * (STEPS - 1)
    last = max(each.pinned[2] for each in found)
    assert [each.pinned[-1] for each in found] == [last] * HOSTS


@pytest.mark.threads
@pytest.mark.parametrize("how", HOW)
def test_replicas_are_equal_to_the_bit_and_near_the_cpus(how: str, tmp_path: Path) -> None:
    found = trained(how, tmp_path)
    assert len({parameters_of(each.model) for each in found}) == 1
    torch.manual_seed(0)
    alone, data = layers(), [torch.Generator().manual_seed(rank) for rank in range(HOSTS)]
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        batches = [torch.randn(16, 64, generator=each) for each in data]
        torch.stack([(alone(each) - 1).square().mean() for each in batches]).mean().backward()
        optimizer.step()
    for one, other in zip(alone.parameters(), found[0].model.parameters(), strict=True):
        assert torch.allclose(one, other.cpu(), atol=1e-5)


@pytest.mark.threads
def test_scaled_gradients_train_as_others(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> tuple[bytes, bytes]:
        found = []
        for scale in (1.0, 256.0):
            training = Trained(job, "ddp_hook")
            scaler = torch.amp.GradScaler(training.device.type, init_scale=scale, enabled=True)
            session = training.attached() if scale > 1 else None
            for step in range(STEPS if session else 0):
                training.optimizer.zero_grad()
                images = torch.full((16, 64), step / STEPS, device=training.device)
                scaler.scale((training.called(images) - 1).square().mean()).backward()
                scaler.step(training.optimizer)
                scaler.update()
            if session:
                session.close()
            found.append(parameters_of(training.model))
        return found[0], found[1]

    with crew(tmp_path, STEPS) as made:
        found = made.all(train)
    assert len({after for _, after in found}) == 1
    assert found[0][0] != found[0][1]


def test_copy_of_a_bucket_overlaps_the_network_of_the_one_before() -> None:
    staging, called, device = Staging(devices.place(), unexpected), threading.Event(), devices.place()
    first, second = torch.futures.Future(), torch.futures.Future()

    def reduce(host: torch.Tensor) -> Any:
        called.set()
        return second

    staging.reduce(0, torch.ones(4, device=device), lambda host: first)
    later = staging.reduce(1, torch.ones(4, device=device), reduce)
    assert called.wait(5) and not first.done()
    second.set_result(torch.full((4,), 3.0))
    assert later.wait().tolist() == [3] * 4
    first.set_result(torch.zeros(4))
    staging.close()


def test_digests_tell_one_changed_bit_and_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kofn_torch.staging.PIECE", 1000)
    assert PIECE > 1000
    values = torch.randn(2500).to(devices.place())
    of, parts = digests([values]).tolist(), values.clone()
    parts[[1, 2]] = values[[2, 1]]
    changed = [values.clone() for _ in range(3)]
    for at, each in zip((0, 999, 2499), changed, strict=True):
        each[at] = -each[at]
    assert len(of) == 3
    assert len({tuple(digests([each]).tolist()) for each in (values, values.clone(), parts, *changed)}) == 5
    for kind in (torch.bool, torch.bfloat16, torch.float64, torch.complex64):
        assert digests([values.to(kind), values.to(kind)]).numel() == 6


# -- bad use


def test_model_on_several_devices_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(devices.place()))
    with pytest.raises(TorchError, match=r"1\.weight must be on cpu, as 0\.weight is, got .*: a model on several"):
        ParameterLayout(model)


@pytest.mark.threads
def test_buffer_on_another_device_is_refused_by_name(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> None:
        model = ddp(layers)
        model.module.register_buffer("beside", torch.ones(2))
        with pytest.raises(TorchError, match=r"beside must be on .*, as 0\.weight is, got cpu"):
            kofn_torch.ddp_hook(model, job=job)

    with crew(tmp_path, STEPS) as made:
        made.all(train)


def test_mps_is_refused() -> None:
    tensor: Any = SimpleNamespace(device=torch.device("mps"))
    with pytest.raises(TorchError, match="weight must be on the cpu, got mps: PyTorch has no streams"):
        device_of({"weight": tensor})


@pytest.mark.threads
@pretended
def test_missing_pinned_memory_is_an_error_at_once(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> float:
        training, begun_s = Trained(job, "ddp_hook"), time.monotonic()
        training.attached()
        given = torch.ones(16, 64, device=training.device)
        come.wait(10)
        for _ in range(2):
            with pytest.raises(TorchError, match=r"pinned memory must have \d+ bytes to allocate"):
                training.called(given).sum().backward()
        return time.monotonic() - begun_s

    come = threading.Barrier(HOSTS)
    with crew(tmp_path, STEPS, give_up_s=2.0) as made, pretend.limited(host=0):
        assert max(made.all(train)) < 12


@pretended
def test_device_without_memory_is_an_error() -> None:
    values, staging = torch.ones(1024, device="pretend:0"), Staging(torch.device("pretend:0"), unexpected)
    with pretend.limited(device=0):
        for stage in (lambda: digests([values]), lambda: staging.receive(0, torch.ones(4096))):
            with pytest.raises(TorchError, match=r"pretend:0 failed while .* were staged: pretend out of memory"):
                stage()
    staging.close()


@pretended
@pytest.mark.parametrize("when", ["before the copy", "during the copy"])
def test_lost_device_ends_the_future_with_an_error(when: str) -> None:
    failed, taken, release = list[Exception](), threading.Event(), threading.Event()
    staging, values = Staging(torch.device("pretend:0"), failed.append), torch.ones(1024, device="pretend:0")
    staging.send("other", values, lambda host: (taken.set(), release.wait(10)))
    assert taken.wait(5)
    words = "pretend:0 failed while gradients or parameters were staged: .*lost"
    if when == "before the copy":
        with pretend.lost(), pytest.raises(TorchError, match=words):
            staging.reduce(0, values, lambda host: pytest.fail())
        release.set()
    else:
        future = staging.reduce(0, values, lambda host: pytest.fail())
        with pretend.lost():
            release.set()
            with pytest.raises(TorchError, match=words):
                future.wait()
        assert isinstance(failed[0], TorchError)
    staging.close()


@pretended
def test_benchmark_prints_a_row_for_each_way() -> None:
    group_of_one()
    lines = accelerator.one_process(torch.device("pretend:0"), {"few": (16, 1)}, steps=accelerator.FIRST + 2)
    assert len(lines) == 4
    assert all(way in line for way, line in zip(("DDP's own", "copies that wait", "staging"), lines[1:], strict=True))


@pytest.mark.threads
def test_session_closes_while_python_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's executors take no work then."""

    def train(job: SwitchedJob) -> Any:
        training = Trained(job, "ddp_hook")
        session = training.attached()
        for _ in range(STEPS):
            training.called(torch.ones(16, 64, device=training.device)).square().mean().backward()
        return session

    with crew(tmp_path, STEPS) as made:
        sessions = made.all(train)
        monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
        for session in sessions:
            session.close()
        monkeypatch.undo()
    assert [session.iteration for session in sessions] == [made.jobs[0].config.run.max_iterations] * HOSTS
