"""Steps of a sharded perceptron that learns digits, for zero-network.toml.

Beside its metrics a worker records the time of each step, from a batch to parameters that all workers have, and the
kernel's counts at the worker's interface (common/kofn_common/results/step_cost.py).
"""

import os
import time
import zlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import kofn_torch
from kofn_common.results.link_bytes import interface_bytes
from kofn_common.results.memory import Memory
from kofn_common.results.step_cost import STEPS_FILE, StepCost
from kofn_host.collectives import Array
from kofn_host.worker import GroupJob
from kofn_host.workload import PIXELS, load_shard
from kofn_torch.group_calls import GroupCalls
from kofn_torch.zero_job import GroupZero

CLASSES = 10


class FollowedGroup(GroupZero):
    """The baseline over a process group, whose steps are the job's iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.job = GroupJob(dist.get_rank(), dist.get_world_size())

    def stepped(self, shared: Array, memory: Memory) -> None:
        self.job.stepped(shared, memory=memory)


def parse() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("--optimizer", choices=["kofn", "FSDP2", "ZeroRedundancyOptimizer"], default="kofn")
    parser.add_argument(
        "--gloo", action="store_true", help="kofn's optimizer over the process group, without the switch"
    )
    for name, default in (("stage", 1), ("bits", 32), ("steps", 12), ("freeze-step", 4), ("batch", 16), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--hidden", type=int, nargs="+", default=[1024, 1024])
    parser.add_argument("--rate", type=float, default=1e-3)
    return parser.parse_args()


def perceptron(hidden: list[int]) -> nn.Sequential:
    sizes = [PIXELS, *hidden]
    below = [layer for pair in zip(sizes, hidden, strict=False) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*below, nn.Linear(hidden[-1], CLASSES))


def sharded(asked: Namespace, model: nn.Sequential) -> tuple[nn.Module, Callable[[], None]]:
    """Return the module for the forward pass, and a step that returns when all workers have the same parameters."""
    if asked.optimizer != "kofn":
        return of_pytorch(asked, model)
    optimizer = kofn_torch.zero(
        model,
        lr=asked.rate,
        stage=asked.stage,
        bits=asked.bits,
        freeze_step=asked.freeze_step,
        job=FollowedGroup() if asked.gloo else None,
    )
    return model, optimizer.step


def of_pytorch(asked: Namespace, model: nn.Sequential) -> tuple[nn.Module, Callable[[], None]]:
    """Return the module and the step for PyTorch's own sharding, over gloo."""
    job, called = GroupJob(dist.get_rank(), dist.get_world_size()), nn.Module()
    if asked.optimizer == "FSDP2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (*(module for module in model if isinstance(module, nn.Linear)), model):
            called = fully_shard(layer, mesh=mesh)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=asked.rate)
    else:
        called = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=asked.rate)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()
        own = [parameter.to_local() if asked.optimizer == "FSDP2" else parameter for parameter in model.parameters()]
        digest = zlib.crc32(torch.cat([tensor.detach().reshape(-1) for tensor in own]).numpy().data)
        job.stepped(GroupCalls().gather(np.array([digest])))

    return called, step


def main() -> None:
    asked = parse()
    dist.init_process_group("gloo")
    rank, interface = dist.get_rank(), os.environ["GLOO_SOCKET_IFNAME"]
    torch.manual_seed(asked.seed)
    torch.set_num_threads(1)
    called, step = sharded(asked, perceptron(asked.hidden))
    shard, costs = load_shard(rank, dist.get_world_size(), asked.seed), list[StepCost]()
    for number in range(1, asked.steps + 1):
        batch, (down, up), begin_s = shard.batch(number, asked.batch), interface_bytes()[interface], time.monotonic()
        cross_entropy(called(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels)).backward()
        step()
        time_s, (now_down, now_up) = time.monotonic() - begin_s, interface_bytes()[interface]
        costs.append(StepCost(time_s=time_s, up=now_up - up, down=now_down - down))
    path = Path(os.environ["KOFN_METRICS"]).with_name(STEPS_FILE.format(rank=rank))
    path.write_bytes(msgspec.json.encode(costs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
