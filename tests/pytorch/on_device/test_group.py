"""The backend "kofn" with tensors of an accelerator: its calls, DDP and FSDP2 on it."""

import threading
import time
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from kofn_host.errors import HostError
from kofn_torch.process_group import GATHERED
from tests.pytorch import devices
from tests.pytorch import test_process_group as on_cpu
from tests.pytorch.test_process_group import Join, in_a_group
from tests.system.collectives.switched import HOSTS

pytestmark = [pytest.mark.torch, pytest.mark.root, pytest.mark.filterwarnings("ignore")]  # PyTorch warns about itself

_threads, join = on_cpu._threads, on_cpu.join  # fixtures

BACKEND = "cpu:kofn," + f"{torch.accelerator.current_accelerator()}:kofn"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_calls_of_device_tensors_go_through_the_switch(dtype: torch.dtype, join: Join) -> None:
    elements = 3 * (1 + GATHERED // 3)

    def work(rank: int) -> list[list[float]]:
        device = devices.place()
        values = torch.arange(elements).to(device, dtype) + rank
        row, rows = (torch.empty(size, device=device, dtype=dtype) for size in (elements // HOSTS, HOSTS * elements))
        summed, few = values.clone(), values[:6].clone()
        for each in (summed, few):
            dist.all_reduce(each)
        dist.reduce_scatter_single(row, values)
        dist.all_gather_single(rows, values)
        dist.broadcast(values, 2)
        assert {each.device for each in (summed, few, row, rows, values)} == {device}
        return [each.float().tolist() for each in (summed, few, row, rows[::elements], values)]

    found, calls = in_a_group(join, work, BACKEND)
    sums, part = [3.0 * number + 3 for number in range(elements)], elements // HOSTS
    for rank, (summed, few, row, firsts, values) in enumerate(found):
        assert (summed, few, row) == (sums, sums[:6], sums[part * rank : part * (rank + 1)])
        assert (firsts, values) == ([0, 1, 2], [2.0 + number for number in range(elements)])
    assert {way for way, _ in calls} == {"kofn"}


def test_other_calls_of_device_tensors_go_over_gloo(join: Join) -> None:
    def work(rank: int) -> list[float]:
        most, sent = torch.full((2,), float(rank), device=devices.place()), torch.zeros(2, device=devices.place())
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if rank == 0:
            dist.send(most, 1)
        elif rank == 1:
            dist.recv(sent, 0)
        return [*most.tolist(), *sent.tolist()]

    found, calls = in_a_group(join, work, BACKEND)
    assert found == [[2, 2, 0, 0], [2, 2, 2, 2], [2, 2, 0, 0]]
    assert calls["gloo", "allreduce"] == 1


def test_gloo_keeps_a_device_that_was_given_to_it(join: Join) -> None:
    def work(rank: int) -> float:
        summed = torch.full((100,), float(rank), device=devices.place())
        dist.all_reduce(summed)
        return float(summed.sum())

    found, calls = in_a_group(join, work, BACKEND.replace("kofn", "gloo").replace("cpu:gloo", "cpu:kofn"))
    assert found == [300.0] * HOSTS
    assert ("kofn", "allreduce") not in calls


@pytest.mark.threads
def test_ddp_and_fsdp_train_as_on_the_cpu(join: Join) -> None:
    alone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    initial = deepcopy(alone)

    def given(rank: int, step: int) -> torch.Tensor:
        return torch.full((2, 8), (rank + step) / 4)

    def work(rank: int) -> list[torch.Tensor]:
        device = torch.device(devices.place().type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
        sharded, whole = deepcopy(initial).to(device), deepcopy(initial).to(device)
        mesh = init_device_mesh(device.type, (HOSTS,))
        for layer in (sharded[0], sharded[2], sharded[4], sharded):
            fully_shard(layer, mesh=mesh)
        replicated: Any = DistributedDataParallel(whole)
        models = [(each, torch.optim.Adam(each.parameters(), lr=0.01)) for each in (sharded, replicated)]
        for step in range(3):
            for model, optimizer in models:
                model(given(rank, step).to(device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        gathered = [each.full_tensor() for each in sharded.parameters()]
        both = (gathered, whole.parameters())
        return [torch.cat([each.detach().reshape(-1) for each in model]).cpu() for model in both]

    optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        torch.stack([alone(given(rank, step)).square().mean() for rank in range(HOSTS)]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    wanted = torch.cat([each.detach().reshape(-1) for each in alone.parameters()])
    found, calls = in_a_group(join, work, BACKEND)
    for sharded, replicated in found:
        assert sharded.allclose(wanted, atol=1e-5)
        assert replicated.allclose(wanted, atol=1e-5)
    assert calls["kofn", "reduce_scatter"] == 9
    assert calls["kofn", "allreduce"] >= 3


def test_calls_of_tensors_on_several_devices_keep_their_order(join: Join) -> None:
    """A call of a tensor on the CPU does not overtake the copy of an earlier call's values."""

    def work(rank: int) -> list[float]:
        first, second = torch.ones(100, device=devices.place()), torch.full((100,), 10.0)
        dist.all_reduce(torch.ones(100, device=devices.place()))
        if rank == 0:
            (staging,) = dist.group.WORLD._stagings.values()
            staging._calls.put(lambda: time.sleep(0.2))  # the values of the next call come late
        begun: list[Any] = [dist.all_reduce(each, async_op=True) for each in (first, second)]
        for each in begun:
            each.wait()
        return [first[0].item(), second[0].item()]

    assert in_a_group(join, work, BACKEND)[0] == [[3.0, 30.0]] * HOSTS


@pytest.mark.threads
def test_ddp_raises_the_error_of_a_call(join: Join) -> None:
    def work(rank: int) -> str:
        device = torch.device(devices.place().type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
        group = dist.new_group(timeout=timedelta(seconds=3))
        model: Any = DistributedDataParallel(nn.Linear(50, 40).to(device), process_group=group)
        for _ in range(2):
            model(torch.ones(4, 50, device=device)).sum().backward()
        if rank == 1:
            ended.wait(10)
            return ""
        with pytest.raises((HostError, RuntimeError)) as caught:
            model(torch.ones(4, 50, device=device)).sum().backward()
        ended.wait(10)
        return str(caught.value)

    ended = threading.Barrier(HOSTS)
    found, _ = in_a_group(join, work, BACKEND, goes_on=False)
    assert all("allreduce of group 1: timeout after 3 s" in found[rank] for rank in (0, 2)), found
