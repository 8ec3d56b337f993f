"""A GPT whose parameters are sharded over the workers (FSDP2): kofn run examples/torch/fsdp.toml

With --gloo without the switch: torchrun --nproc-per-node 4 examples/torch/fsdp.py --gloo
"""

import sys

import torch
import torch.distributed as dist
from gpt import GPT, batch_of, read_text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import kofn_torch

STEPS = 40

dist.init_process_group("gloo" if "--gloo" in sys.argv else "kofn")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
text, characters = read_text()
torch.manual_seed(1)
model = GPT(characters)
for block in model.blocks:
    fully_shard(block, mesh=mesh)  # each layer is gathered when it is used, and its gradients are scattered
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if "--gloo" not in sys.argv:
    kofn_torch.follow(model, optimizer)  # so the run has its iterations
generator = torch.Generator().manual_seed(dist.get_rank())

for step in range(1, STEPS + 1):
    given, wanted = batch_of(text, generator)
    loss = cross_entropy(model(given).flatten(0, 1), wanted.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.SUM)
    if step % 10 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {mean.item() / dist.get_world_size():.6f}", flush=True)

if isinstance(dist.group.WORLD, kofn_torch.SwitchGroup) and dist.get_rank() == 0:
    print(f"calls: {dict(dist.group.WORLD.calls)}", flush=True)
dist.destroy_process_group()
