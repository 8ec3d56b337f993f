"""Digits by a schedule: gradients leave layer by layer, and each layer's forward pass waits for its own mean alone.

kofn run examples/torch/digits_schedule.toml
"""

import torch
import torch.distributed as dist
from torch import nn

import kofn_torch
from kofn import load_shard

dist.init_process_group("gloo")
torch.manual_seed(1)  # the same parameters everywhere: no DistributedDataParallel hands them out
data = load_shard(dist.get_rank(), dist.get_world_size(), seed=1)
model = nn.Sequential(
    *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten()),
    *(nn.Linear(1024, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
session = kofn_torch.schedule(model, optimizer)  # the line, with the job's [schedule]

while not session.done():
    batch = data.batch(session.iteration + 1, 32)
    loss = nn.functional.cross_entropy(model(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels))
    session.backward(loss)  # in place of loss.backward() and optimizer.step()

session.close()
if dist.get_rank() == 0:
    guessed = model(torch.from_numpy(data.held_out.images)).argmax(dim=1).numpy()
    print(f"accuracy {(guessed == data.held_out.labels).mean():.1%}", flush=True)
dist.destroy_process_group()
