"""Digits on the fastest k of n workers: kofn run examples/torch/digits_elastic.toml

Each worker has its own process group, so one may die and come back while the others go on.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kofn_torch
from kofn import load_shard

dist.init_process_group("gloo")
torch.manual_seed(1)  # every worker begins with the same parameters
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.5)
session = kofn_torch.elastic(model, optimizer, scheduler)
data = load_shard(session.rank, session.workers, seed=1)

while not session.done():
    batch = data.batch(session.iteration + 1, 32)
    loss = nn.functional.cross_entropy(model(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels))
    session.loss = loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # and the scheduler's, and all that the others have finished meanwhile

guessed = model.module(torch.from_numpy(data.held_out.images)).argmax(dim=1).numpy()
session.log(accuracy=(guessed == data.held_out.labels).mean())  # a row of the table
session.close()
dist.destroy_process_group()
