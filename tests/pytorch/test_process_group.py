"""The backend "kofn" over exact sums of a real switch: the calls that use it, and trainings on it."""

import math
import re
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import reduce_scatter_tensor, wait_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg, _uninstall_threaded_pg

with warnings.catch_warnings(action="ignore"):  # PyTorch warns about itself
    from torch.distributed.optim import ZeroRedundancyOptimizer

import kofn_torch
import kofn_torch.process_group
from kofn_host.collectives import Communicator
from kofn_host.errors import HostError
from kofn_torch.process_group import GATHERED
from tests.system.collectives.crews import addresses
from tests.system.collectives.switched import EMBEDDED, HOSTS, started

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # PyTorch warns about itself

Join = Callable[[int], Communicator]

Layout = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Make each rank a thread with its own process groups."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    yield
    _uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)


@pytest.fixture
def join() -> Join:
    """Return a function from a rank to its communicator through the switch."""
    place = started(EMBEDDED).place(addresses(HOSTS))
    return lambda rank: place.join(rank, 20.0)


def in_a_group(
    join: Join, work: Callable[[int], Any], backend: str = "kofn", *, goes_on: bool = True
) -> tuple[list[Any], Counter[tuple[str, str]]]:
    """Run the work in a group, which `goes_on` after it; return the results by rank, and rank 0's calls."""
    store = dist.HashStore()

    def one(rank: int) -> tuple[Any, Counter[tuple[str, str]]]:
        with join(rank) as communicator:
            kofn_torch.use(communicator)
            dist.init_process_group(backend, rank=rank, world_size=HOSTS, store=store)
            group = dist.group.WORLD
            assert isinstance(group, kofn_torch.SwitchGroup)
            found = work(rank)
            if goes_on:
                dist.barrier()
            dist.destroy_process_group()
            return found, group.calls

    with ThreadPoolExecutor(HOSTS) as pool:
        found = list(pool.map(one, range(HOSTS)))
    return [each for each, _ in found], found[0][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_sums_and_copies_of_every_dtype_go_through_the_switch(dtype: torch.dtype, join: Join) -> None:
    elements = 3 * (1 + GATHERED // 3)

    def work(rank: int) -> list[list[float]]:
        values = torch.arange(elements).to(dtype) + rank
        row, rows = torch.empty(elements // HOSTS, dtype=dtype), torch.empty(HOSTS * elements, dtype=dtype)
        summed, few = values.clone(), values[:6].clone()
        for each in (summed, few):
            dist.all_reduce(each)
        dist.reduce_scatter_single(row, values)
        dist.all_gather_single(rows, values)
        dist.broadcast(values, 2)
        return [each.float().tolist() for each in (summed, few, row, rows[::elements], values)]

    found, calls = in_a_group(join, work)
    sums, part = [3.0 * number + 3 for number in range(elements)], elements // HOSTS
    for rank, (summed, few, row, firsts, values) in enumerate(found):
        assert (summed, few, row) == (sums, sums[:6], sums[part * rank : part * (rank + 1)])
        assert (firsts, values) == ([0, 1, 2], [2.0 + number for number in range(elements)])
    assert {way for way, _ in calls} == {"kofn"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_statistics_of_any_magnitudes_are_summed_independently(dtype: torch.dtype, join: Join) -> None:
    """For example, a loss beside a number of tokens, or beside a non-finite one."""

    def work(rank: int) -> tuple[list[float], list[float], float]:
        given = [2.0**14 if dtype == torch.float16 else 2.0**40, 0.5 + rank, 2.0**-12, -0.0]
        given += [math.inf if rank == 1 else 1.0, torch.finfo(dtype).max]
        summed, mean = (torch.tensor(given, dtype=dtype) for _ in range(2))
        dist.all_reduce(summed)
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        number = torch.tensor(0.5 + rank, dtype=dtype)
        dist.all_reduce(number)
        return summed.tolist(), mean.tolist(), number.item()

    large, most = 2.0**14 if dtype == torch.float16 else 2.0**40, torch.finfo(dtype).max
    found, calls = in_a_group(join, work)
    for summed, mean, number in found:
        assert number == 4.5
        assert summed == [3 * large, 4.5, 3 * 2.0**-12, 0, math.inf, math.inf]
        assert mean == [large, 1.5, 2.0**-12, 0, math.inf, most]
    assert calls["kofn", "allreduce"] == 3


def test_callback_of_a_call_may_wait_for_other_calls(join: Join) -> None:
    """PowerSGD's hook does this in its callbacks, for each bucket."""

    def work(rank: int) -> list[float]:
        group = dist.new_group(timeout=timedelta(seconds=5))

        def again(done: Any) -> torch.Tensor:
            (summed,) = done.value()
            found: torch.Tensor = dist.all_reduce(summed, group=group, async_op=True).get_future().wait()[0]
            return found

        time.sleep(0.3 * (rank == 2))  # at the other ranks the calls are not done when callbacks are added
        given = [torch.full((100,), 1.0 * number) for number in range(6)]
        begun = [dist.all_reduce(each, group=group, async_op=True) for each in given]
        followed = [each.get_future().then(again) for each in begun]
        return [each.wait()[0].item() for each in followed]

    assert in_a_group(join, work)[0] == [[9.0 * number for number in range(6)]] * HOSTS


def test_process_ends_while_calls_are_in_flight() -> None:
    """With PyTorch's own groups it would be aborted. Three children, one after another, end like processes."""
    ((host, _, port),) = [each.rpartition(":") for each in addresses(1)]
    script = f"""
import os, sys, torch, torch.distributed as dist, kofn_torch
from kofn_host.collectives.kinds.ring import Ring
children = 0
while children < 3 and os.fork():
    children += 1
    if os.wait()[1]:
        sys.exit("a child has failed")
if children == 3:
    sys.exit()
kofn_torch.use(Ring(0, ("{host}:{port}",)))
dist.init_process_group("kofn", rank=0, world_size=1, store=dist.HashStore())
for _ in range(20):
    dist.all_reduce(torch.ones(100_000), async_op=True).get_future().then(lambda done: done.value()[0] / 2)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_wait_for_a_call_that_never_ends_fails_after_the_groups_limit(join: Join) -> None:
    """A future of a future is PyTorch's own, and nothing else would end its wait."""

    def work(rank: int) -> None:
        group = dist.new_group(timeout=timedelta(seconds=1))

        def again(done: Any) -> Any:
            called: Any = dist.all_reduce(torch.ones(100), group=group, async_op=True)
            return called.get_future().then(lambda done: done.value()).wait()

        time.sleep(0.3 * (rank == 2))
        begun: Any = dist.all_reduce(torch.ones(100), group=group, async_op=True)
        with suppress(RuntimeError):
            begun.get_future().then(again).wait()

    begun_s = time.monotonic()
    in_a_group(join, work)
    assert time.monotonic() - begun_s < 10


def test_group_of_all_ranks_in_another_order_uses_gloo(join: Join) -> None:
    """Rank 1 has the same place as in the communicator."""

    def work(rank: int) -> tuple[list[float], float]:
        group, rows, given = dist.new_group([2, 1, 0], sort_ranks=False), torch.empty(3), torch.tensor([float(rank)])
        dist.all_gather_single(rows, given, group=group)
        dist.broadcast(given, 2, group=group)
        return rows.tolist(), given.item()

    found, calls = in_a_group(join, work)
    assert found == [([2, 1, 0], 2)] * HOSTS
    assert calls["kofn", "broadcast"] == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dist.all_gather_single(torch.empty(7), torch.ones(2)), "the output must have 6 elements, got 7"),
        (lambda: dist.reduce_scatter_single(torch.empty(3), torch.ones(6)), "the output must have 2 elements, got 3"),
        (
            lambda: dist.reduce_scatter_single(torch.empty(2), torch.ones(7)),
            "the output must have as many elements as a rank's part, got 2",
        ),
    ],
)
def test_output_of_another_size_is_named(call: Callable[[], object], words: str, join: Join) -> None:
    def work(rank: int) -> None:
        with pytest.raises(kofn_torch.TorchError, match=words):
            call()

    in_a_group(join, work, goes_on=False)


def test_unsupported_sums_use_gloo(join: Join) -> None:
    def work(rank: int) -> tuple[float, ...]:
        most, double, pair = torch.tensor(rank), torch.ones(HOSTS, dtype=torch.float64), torch.ones(3)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        dist.all_reduce(double)
        row, rows = torch.empty(1, dtype=torch.float64), torch.empty(HOSTS * HOSTS, dtype=torch.float64)
        dist.reduce_scatter_single(row, double)
        dist.all_gather_single(rows, double)
        group = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(pair, group=group)
        return most.item(), double.sum().item(), row.item(), rows.sum().item(), pair.sum().item()

    found, calls = in_a_group(join, work)
    assert found == [(2, 9, 9, 27, 6), (2, 9, 9, 27, 6), (2, 9, 9, 27, 3)]
    assert calls["gloo", "allreduce"] == 2
    assert ("kofn", "allreduce") not in calls


def strided(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values, torch.full_like(values, 99)], dim=-1).select(-1, 0)


def negated(values: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-values)


def every_call(rank: int, laid_out: Layout, dtype: torch.dtype, elements: int) -> dict[str, torch.Tensor]:
    """Make each call once on tensors made by `laid_out`; return their values afterwards."""

    def own(number: int = 0) -> torch.Tensor:
        return laid_out(torch.arange(elements * HOSTS, dtype=dtype) + 10 * rank + 100 * number)

    def part(number: int = 0) -> torch.Tensor:
        return laid_out(torch.arange(elements, dtype=dtype) + 10 * rank + 100 * number)

    def parts() -> list[torch.Tensor]:
        return [part(number) for number in range(HOSTS)]

    found = dict[str, torch.Tensor]()
    for name, op in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX)):
        found[name], found[f"scattered {name}"] = own(), part()
        dist.all_reduce(found[name], op=op)
        dist.reduce_scatter_single(found[f"scattered {name}"], own(), op=op)
    found["work"] = own()
    dist.all_reduce(found["work"], async_op=True).get_future().wait()
    found["broadcast"], found["gathered"], found["exchanged"] = own(), own(), own()
    dist.broadcast(found["broadcast"], 1)
    dist.all_gather_single(found["gathered"], part())
    dist.all_to_all_single(found["exchanged"], own())
    lists = {name: parts() for name in ("all_gather", "all_to_all", "gather", "coalesced", "all_gather_coalesced")}
    dist.all_gather(lists["all_gather"], part())
    dist.all_to_all(lists["all_to_all"], parts())
    dist.gather(part(), lists["gather"] if rank == 0 else None, 0)
    dist.all_reduce_coalesced(lists["coalesced"])
    dist.all_gather_coalesced([[each] for each in lists["all_gather_coalesced"]], [part()])
    found["scattered"], found["reduced"], found["list"] = part(), part(), part()
    dist.scatter(found["scattered"], parts() if rank == 0 else None, 0)
    dist.reduce_scatter(found["list"], parts())
    dist.reduce(found["reduced"], 0)
    if rank:
        del found["reduced"]  # only the destination's value is defined
    found["functional"] = wait_tensor(reduce_scatter_tensor(own(), "sum", 0, dist.group.WORLD))
    if rank == 0:
        dist.send(part(), 1)
        dist.send(part(), 1)
    elif rank == 1:
        found["received"], found["from any"] = part(1), part(1)
        dist.recv(found["received"], 0)
        assert dist.recv(found["from any"]) == 0
    return found | {f"{name} {at}": each for name, several in lists.items() for at, each in enumerate(several)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("laid_out", "elements"), [(strided, 2), (negated, 2), (torch.clone, 0)])
def test_every_call_takes_tensors_of_any_layout(
    laid_out: Layout, elements: int, dtype: torch.dtype, join: Join
) -> None:
    """The values are those of contiguous tensors, through the switch and over gloo."""

    def work(rank: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return every_call(rank, laid_out, dtype, elements), every_call(rank, torch.clone, dtype, elements)

    found, calls = in_a_group(join, work)
    for of_layout, contiguous in found:
        assert {name: each.tolist() for name, each in of_layout.items()} == {
            name: each.tolist() for name, each in contiguous.items()
        }
    assert ("kofn", "allreduce") in calls or dtype == torch.float64
    assert ("gloo", "allreduce") in calls


def test_tensor_with_shared_elements_is_read_and_never_written(join: Join) -> None:
    def work(rank: int) -> list[float]:
        for dtype in (torch.float32, torch.float64):
            with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
                dist.all_reduce(torch.ones(1, dtype=dtype).expand(1000))
        rows = torch.zeros(2 * HOSTS, dtype=torch.float64)
        dist.all_gather_single(rows, torch.full((1,), float(rank), dtype=torch.float64).expand(2))
        return rows.tolist()

    assert in_a_group(join, work)[0] == [[0, 0, 1, 1, 2, 2]] * HOSTS


@pytest.mark.parametrize("backend", ["cpu:kofn,cuda:gloo", "cuda:gloo,cpu:kofn"])
def test_group_works_beside_a_backend_for_another_device(backend: str, join: Join) -> None:
    """The machine has no such device; the group tells which backend a call would use."""

    def work(rank: int) -> tuple[float, list[str], bool]:
        summed = torch.full((3,), float(rank))
        dist.all_reduce(summed)
        replicated = DistributedDataParallel(nn.Linear(2, 2))
        replicated(torch.ones(1, 2)).sum().backward()
        group = dist.group.WORLD
        ways = [type(group._get_backend(torch.device(device))).__name__ for device in ("cpu", "cuda")]
        return summed.sum().item(), ways, group._carries(torch.empty(1, device="meta"))

    found, calls = in_a_group(join, work, backend)
    assert found == [(9, ["ProcessGroupGloo"] * 2, False)] * HOSTS
    assert calls["kofn", "allreduce"] >= 2
    assert ("gloo", "allreduce") not in calls


def test_fsdp_and_ddp_train_on_the_backend(join: Join) -> None:
    def work(rank: int) -> tuple[float, float]:
        sharded, whole = nn.Linear(8, 8), nn.Linear(8, 8)
        for each in (sharded, whole):
            nn.init.ones_(each.weight)
        fully_shard(sharded, mesh=init_device_mesh("cpu", (HOSTS,)))
        sharded(torch.full((2, 8), float(rank))).sum().backward()
        replicated = DistributedDataParallel(whole)
        replicated(torch.full((2, 8), float(rank))).sum().backward()
        return sharded.weight.grad.full_tensor().sum().item(), whole.weight.grad.sum().item()

    found, calls = in_a_group(join, work)
    assert found == [(128.0, 128.0)] * HOSTS  # the mean of 0, 1 and 2, twice, in 64 elements
    assert calls["kofn", "reduce_scatter"] == 1
    assert calls["kofn", "allreduce"] >= 1


def test_sharded_layers_and_a_sharded_optimizer_train_as_usual(join: Join) -> None:
    """FSDP2 layer by layer and ZeRO's first stage give the parameters of plain training on all batches."""

    alone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    initial = deepcopy(alone)

    def given(rank: int, step: int) -> torch.Tensor:
        return torch.full((2, 8), (rank + step) / 4)

    def work(rank: int) -> list[torch.Tensor]:
        sharded, whole, mesh = deepcopy(initial), deepcopy(initial), init_device_mesh("cpu", (HOSTS,))
        for layer in (sharded[0], sharded[2], sharded[4], sharded):
            fully_shard(layer, mesh=mesh)
        replicated = DistributedDataParallel(whole)
        by_shards = torch.optim.Adam(sharded.parameters(), lr=0.01)
        in_parts = ZeroRedundancyOptimizer(whole.parameters(), torch.optim.Adam, lr=0.01)
        for step in range(3):
            for model, optimizer in ((sharded, by_shards), (replicated, in_parts)):
                model(given(rank, step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        gathered = [each.full_tensor() for each in sharded.parameters()]
        return [torch.cat([each.detach().reshape(-1) for each in model]) for model in (gathered, whole.parameters())]

    optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    for step in range(3):
        torch.stack([alone(given(rank, step)).square().mean() for rank in range(HOSTS)]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    wanted = torch.cat([each.detach().reshape(-1) for each in alone.parameters()])
    found, calls = in_a_group(join, work)
    for sharded, replicated in found:
        assert sharded.allclose(wanted, atol=1e-5)
        assert replicated.allclose(wanted, atol=1e-5)
    assert calls["kofn", "reduce_scatter"] == 9
    assert calls["kofn", "broadcast"] > 0


def summed(group: Any, *, refused: bool) -> Any:
    values = torch.full((200,), 10.0)
    values[7] = math.inf if refused else 10.0
    return dist.all_reduce(values, group=group, async_op=True)


def summed_together(group: Any, *, refused: bool) -> Any:
    """Make three calls as one; the second is refused."""
    several = [torch.full((200,), 10.0) for _ in range(3)]
    several[1][3] = math.nan if refused else 10.0
    return dist.all_reduce_coalesced(several, group=group, async_op=True)


def on_no_device(group: Any, *, refused: bool) -> Any:
    values = torch.empty(200, device="meta") if refused else torch.full((200,), 10.0)
    return dist.all_reduce(values, group=group, async_op=True)


def over_gloo(group: Any, *, refused: bool) -> Any:
    """Make a call that waits for the other ranks' calls, where gloo makes it at one rank only."""
    values = torch.full((200,), 10.0, dtype=torch.float64 if refused else torch.float32)
    return dist.all_reduce(values, group=group, async_op=True)


@pytest.mark.parametrize(
    ("call", "limit_s", "words"),
    [
        (summed, 20, "worker 1: allreduce of group .*: array element 7 must be finite .* got inf"),
        (summed_together, 20, "worker 1: allreduce of group .*: array element 3 must be finite .* got nan"),
        (on_no_device, 20, "worker 1: allreduce of group .*device type meta"),
        (over_gloo, 1, "allreduce of group .*: timeout after 1 s"),
    ],
)
def test_no_call_after_a_call_that_one_rank_does_not_make_has_a_result(
    call: Callable[..., Any], limit_s: int, words: str, join: Join
) -> None:
    """Otherwise the rank's later calls would meet the other ranks' earlier ones."""

    def work(rank: int) -> list[str]:
        group, found = dist.new_group(timeout=timedelta(seconds=limit_s)), list[str]()
        with pytest.raises((HostError, RuntimeError)) as caught:
            call(group, refused=rank == 1).wait()
        found.append(str(caught.value))
        for step in (100.0, 1000.0):
            with pytest.raises((HostError, RuntimeError)) as caught:
                dist.all_reduce(torch.full((200,), step), group=group)
            found.append(str(caught.value))
        return found

    found, _ = in_a_group(join, work, goes_on=False)
    assert all(re.search(words, found[rank][0]) for rank in (0, 2)), found


def test_refused_call_over_gloo_closes_a_group_of_some_ranks(join: Join) -> None:
    def work(rank: int) -> None:
        group = dist.new_group([0, 1])
        if rank == 0:
            with pytest.raises(RuntimeError, match="device type meta"):
                on_no_device(group, refused=True)
            with pytest.raises(kofn_torch.TorchError, match=r"group .* is closed: .*device type meta"):
                dist.all_reduce(torch.ones(3), group=group)

    in_a_group(join, work)


@pytest.mark.parametrize("call", ["allreduce", "allreduce_coalesced"])
def test_wait_with_a_timeout_ends_and_the_call_continues(call: str, join: Join) -> None:
    def work(rank: int) -> tuple[float, float]:
        given, summed = torch.ones(200), torch.ones(200)
        if rank == 1:
            ended.wait(10)
        begun, begun_s = getattr(dist.group.WORLD, call)([given]), time.monotonic()
        if rank != 1:
            with pytest.raises(kofn_torch.TorchError, match=r"allreduce of group 0 is not done after 0.3 s"):
                begun.wait(timedelta(seconds=0.3))
            assert 0.3 <= time.monotonic() - begun_s < 5
            ended.wait(10)
        begun.wait()
        dist.all_reduce(summed)
        return given.sum().item(), summed.sum().item()

    ended = threading.Barrier(HOSTS)
    assert in_a_group(join, work)[0] == [(600.0, 600.0)] * HOSTS


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.scale = nn.Linear(50, 40), nn.Linear(50, 40), nn.BatchNorm1d(40)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.scale(self.used(given))
        return found


def several_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (several_layers, {}),
        (several_layers, {"bucket_cap_mb": 0.001}),
        (several_layers, {"static_graph": True}),
        (Unused, {"find_unused_parameters": True}),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_ddp_raises_an_error_that_names_the_missing_worker(
    make: Callable[[], nn.Module], options: dict[str, Any], late: bool, join: Join
) -> None:
    """DDP's C++ takes the tensors of a call's future."""

    def work(rank: int) -> str:
        group = dist.new_group(timeout=timedelta(seconds=3 if late else 20))
        model = DistributedDataParallel(make(), process_group=group, **options)
        for _ in range(2):
            model(torch.randn(4, 50)).square().sum().backward()
        if rank == 1:
            if late:
                ended.wait(10)
            return "worker 1"
        with pytest.raises((HostError, RuntimeError)) as caught:
            for _ in range(2):
                model(torch.randn(4, 50)).square().sum().backward()
        ended.set()
        return str(caught.value)

    ended = threading.Event()
    found, _ = in_a_group(join, work, goes_on=False)
    words = "timeout after 3 s; not made by worker 1: the call" if late else "worker 1 "
    assert all(words in found[rank] for rank in (0, 2)), found


def test_group_needs_a_communicator_of_its_rank(join: Join) -> None:
    def init(rank: int) -> None:
        dist.init_process_group("kofn", rank=rank, world_size=HOSTS, store=dist.HashStore())

    with pytest.raises(kofn_torch.TorchError, match="a communicator must be given"):
        init(0)

    def work(rank: int) -> None:
        with join(rank) as communicator:
            kofn_torch.use(communicator)
            with pytest.raises(kofn_torch.TorchError, match="the communicator's rank must be"):
                init((rank + 1) % HOSTS)

    with ThreadPoolExecutor(HOSTS) as pool:
        list(pool.map(work, range(HOSTS)))


@pytest.mark.parametrize("given", [None, Communicator])
def test_object_that_is_no_communicator_is_refused(given: Any) -> None:
    with pytest.raises(kofn_torch.TorchError, match=f"must be a kofn.Communicator, got a {type(given).__name__}"):
        kofn_torch.use(given)


def test_call_that_a_rank_leaves_out_fails_after_the_groups_limit(join: Join) -> None:
    """The rank's next call would meet the call that it has left out."""

    def work(rank: int) -> float:
        group, begun_s = dist.new_group(timeout=timedelta(seconds=1)), time.monotonic()
        if rank != 2:
            with pytest.raises(
                HostError, match=r"barrier of group .*: timeout after 1 s; not made by worker 2: the call"
            ):
                dist.barrier(group)
            ended.wait(10)
        else:
            ended.wait(10)
            with pytest.raises(HostError, match=r"worker [01]: barrier of group .*: timeout after 1 s"):
                dist.barrier(group)
        return time.monotonic() - begun_s

    ended = threading.Barrier(HOSTS)
    found, _ = in_a_group(join, work, goes_on=False)
    assert 1 <= max(found) < 10  # the first rank that has waited so long ends the call for all
