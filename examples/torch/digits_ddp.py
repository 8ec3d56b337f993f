"""Digits in plain DistributedDataParallel, and one line more: kofn run examples/torch/digits_ddp.toml

With --gloo it is plain: torchrun --nproc-per-node 4 examples/torch/digits_ddp.py --gloo
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kofn_torch
from kofn import load_shard

dist.init_process_group("gloo")
data = load_shard(dist.get_rank(), dist.get_world_size(), seed=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
if "--gloo" not in sys.argv:
    kofn_torch.ddp_hook(model)  # the line: gradients go through the switch
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for step in range(1, 201):
    batch = data.batch(step, 32)
    loss = nn.functional.cross_entropy(model(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 and dist.get_rank() == 0:
        guessed = model.module(torch.from_numpy(data.held_out.images)).argmax(dim=1).numpy()
        print(
            f"step {step}: loss {loss.item():.4f}, accuracy {(guessed == data.held_out.labels).mean():.1%}", flush=True
        )

dist.destroy_process_group()
