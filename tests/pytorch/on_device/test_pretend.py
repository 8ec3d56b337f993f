"""The pretend accelerator's values, and the mistakes that it shows: each is made here once, without kofn."""

import copy
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.pytorch import devices, pretend

pytestmark = pytest.mark.torch

if devices.KIND != "pretend":
    pytest.skip("these are the pretend accelerator's own tests", allow_module_level=True)

MODELS = {
    "layers": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (5, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU()), (2, 3, 8, 8)),
}


@pytest.fixture(autouse=True)
def _late() -> Iterator[None]:
    yield
    devices.start()


@pytest.mark.parametrize("mode", range(5))
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_cpu(name: str, mode: int) -> None:
    make, shape = MODELS[name]
    pretend.mode(mode, 1)
    torch.manual_seed(0)
    host, given = make(), torch.randn(shape)
    device = copy.deepcopy(host).to("pretend:1")
    host(given).square().mean().backward()
    device(given.to("pretend:1")).square().mean().backward()
    for one, other in zip(host.parameters(), device.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad.cpu(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_optimizers_step_as_on_the_cpu(kind: type[torch.optim.Optimizer]) -> None:
    host = nn.Linear(4, 3)
    device = copy.deepcopy(host).to("pretend")
    for model in (host, device):
        optimizer = kind(model.parameters(), lr=0.1)
        for step in range(3):
            given = torch.full((2, 4), step + 1.0).to(model.weight.device)
            optimizer.zero_grad()
            model(given).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert torch.allclose(host.weight, device.weight.cpu())


def test_cpu_cannot_read_device_memory() -> None:
    code = (
        "import ctypes, torch; from tests.pytorch import pretend; pretend.load();"
        "ctypes.c_float.from_address(torch.ones(4).to('pretend').data_ptr()).value"
    )
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=False)
    assert ended.returncode == -signal.SIGSEGV


def test_copy_to_pinned_memory_ends_when_the_host_has_waited() -> None:
    side, host, values = torch.Stream("pretend"), torch.empty(4, pin_memory=True), torch.arange(4.0).to("pretend")
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        host.copy_(values, non_blocking=True)
        copied = side.record_event()
    assert host.is_pinned() and host.isnan().all() and not copied.query()
    before = pretend.waits()
    copied.synchronize()
    assert pretend.waits() == before + 1
    assert host.tolist() == [0, 1, 2, 3]


def test_stream_that_does_not_wait_reads_nan() -> None:
    side, values = torch.Stream("pretend"), torch.ones(4, device="pretend") * 3
    with side:
        assert values.cpu().isnan().all()
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        assert values.cpu().tolist() == [3] * 4


def test_future_with_devices_orders_its_waiter() -> None:
    side, target, host = torch.Stream("pretend"), torch.empty(4, device="pretend"), torch.ones(4).pin_memory()
    for devices_of, wanted in (([], float("nan")), (["pretend:0"], 1.0)):
        future = torch.futures.Future(devices=devices_of)
        with side:
            target.fill_(float("nan"))
            target.copy_(host, non_blocking=True)
            future.set_result(target)
        future.wait()
        assert torch.allclose(target.cpu(), torch.full((4,), wanted), equal_nan=True)


@pytest.mark.parametrize("recorded", [False, True])
def test_freed_memory_keeps_its_values_for_recorded_streams(recorded: bool) -> None:
    values, side, host = torch.full((4,), 7.0).to("pretend"), torch.Stream("pretend"), torch.empty(4, pin_memory=True)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        host.copy_(values, non_blocking=True)
    if recorded:
        values.record_stream(side)
    del values
    torch.accelerator.current_stream().synchronize()
    side.synchronize()
    assert host.isnan().all() != recorded


def test_devices_have_streams_and_kernels_of_their_own() -> None:
    one, other = torch.ones(2, device="pretend:1"), torch.ones(2, device="pretend:2")
    with pytest.raises(RuntimeError, match="two devices"):
        one + other
    assert torch.accelerator.current_stream("pretend:2").device_index == 2
    assert (one + other.to("pretend:1")).cpu().tolist() == [2, 2]


def test_limits_and_loss_are_errors() -> None:
    values = torch.ones(1024, device="pretend")
    with pretend.limited(device=1024), pytest.raises(torch.OutOfMemoryError):
        torch.empty(4096, device="pretend")
    with pretend.limited(host=1024), pytest.raises(RuntimeError, match="no more memory can be pinned"):
        torch.empty(4096, pin_memory=True)
    with pretend.lost(), pytest.raises(RuntimeError, match="lost"):
        values.cpu()
