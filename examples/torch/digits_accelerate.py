"""Digits by Hugging Face's accelerate (pip install accelerate), and one line more:

    kofn run examples/torch/digits_ddp.toml --torch examples/torch/digits_accelerate.py

With --gloo it is plain: torchrun --nproc-per-node 4 examples/torch/digits_accelerate.py --gloo
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn

import kofn_torch
from kofn import load_shard

accelerator = Accelerator(cpu=True)
data = load_shard(accelerator.process_index, accelerator.num_processes, seed=1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
if "--gloo" not in sys.argv:
    kofn_torch.ddp_hook(model)  # the line: what prepare() returns is a DistributedDataParallel

for step in range(1, 201):
    batch = data.batch(step, 32)
    loss = nn.functional.cross_entropy(model(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels))
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if step % 50 == 0:
        accelerator.print(f"step {step}: loss {loss.item():.4f}", flush=True)

accelerator.end_training()
