"""One worker of `kofn experiment zero --network`, by torchrun: network_worker.py CONTENDER STEPS FREEZE_STEP SEED

Beside its metrics it leaves of each step the time, from a batch to parameters that all workers have, and what the
kernel has counted at its interface meanwhile.
"""

import os
import sys
import time
import zlib
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

import kofn.torch
from kofn.experiments.zero.network_contenders import NETWORK, STEPS_FILE, NetworkContender, StepCost
from kofn.experiments.zero.training import BATCH, HIDDEN, TASKS
from kofn.host.collectives.call import Array
from kofn.host.kernels.sample import fingerprint
from kofn.host.workload.model import load_shard
from kofn.results.link_bytes import interface_bytes
from kofn.results.memory import Memory
from kofn.torch.group_calls import GroupCalls
from kofn.torch.group_job import GroupJob
from kofn.torch.zero_job import GroupZero

Step = Callable[[], None]
"""After backward(): until all workers have the same parameters."""


class FollowedGroup(GroupZero):
    """The baseline over a process group, whose steps are the job's iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.job = GroupJob(dist.get_rank(), dist.get_world_size())

    def stepped(self, shared: Array, memory: Memory) -> None:
        self.job.stepped(fingerprint(shared), memory)


def perceptron() -> nn.Module:
    sizes = (64, *HIDDEN)
    hidden = [each for pair in zip(sizes, HIDDEN, strict=False) for each in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN[-1], 10))


def sharded(contender: NetworkContender, model: nn.Module, freeze_step: int) -> tuple[nn.Module, Step]:
    """What is called in the forward pass, and a step; PyTorch's own are told to the job as well."""
    rate = TASKS["mlp"].rate
    if contender.optimizer == "kofn":
        through = FollowedGroup() if contender.gloo else None
        own = kofn.torch.zero(
            model, lr=rate, stage=contender.stage, bits=contender.bits, freeze_step=freeze_step, job=through
        )
        return model, own.step
    job = FollowedGroup()
    if contender.optimizer == "FSDP2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        called: nn.Module = fully_shard(model, mesh=mesh)
        optimizer: Any = torch.optim.Adam(model.parameters(), lr=rate)
    else:
        called = DistributedDataParallel(model)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=rate)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()
        own = [each.to_local() if contender.optimizer == "FSDP2" else each for each in model.parameters()]
        digest = zlib.crc32(torch.cat([each.detach().reshape(-1) for each in own]).numpy().data)
        job.job.stepped(fingerprint(GroupCalls().gather(np.array([digest]))))

    return called, step


def main(name: str, steps: int, freeze_step: int, seed: int) -> None:
    dist.init_process_group("gloo")
    rank, interface = dist.get_rank(), os.environ["GLOO_SOCKET_IFNAME"]
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    called, step = sharded(NETWORK[name], perceptron(), freeze_step)
    shard, costs = load_shard(rank, dist.get_world_size(), seed), list[StepCost]()
    for number in range(1, steps + 1):
        batch, (down, up), begin_s = shard.batch(number, BATCH), interface_bytes()[interface], time.monotonic()
        loss = cross_entropy(called(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels))
        loss.backward()
        step()
        now_down, now_up = interface_bytes()[interface]
        costs.append(StepCost(time_s=time.monotonic() - begin_s, up=now_up - up, down=now_down - down))
    path = Path(os.environ["KOFN_METRICS"])
    path.with_name(STEPS_FILE.format(rank=rank)).write_bytes(msgspec.json.encode(costs))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
