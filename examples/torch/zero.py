"""The small GPT with an optimizer that is sharded over the workers (ZeRO): kofn run examples/torch/zero.toml

With --gloo without the switch: torchrun --nproc-per-node 4 examples/torch/zero.py --gloo --bits 32
"""

from argparse import ArgumentParser

import torch
import torch.distributed as dist
from gpt import GPT, batch_of, read_text
from torch.nn.functional import cross_entropy

import kofn_torch

parser = ArgumentParser()
parser.add_argument("--stage", type=int, default=2)
parser.add_argument("--bits", type=int, default=1)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--freeze-step", type=int, default=40)
parser.add_argument("--gloo", action="store_true")
asked = parser.parse_args()

dist.init_process_group("gloo")
text, characters = read_text()
torch.manual_seed(1)
model = GPT(characters)
optimizer = kofn_torch.zero(
    model,
    lr=1e-3,
    stage=asked.stage,
    bits=asked.bits,
    freeze_step=asked.freeze_step,
    through="gloo" if asked.gloo else "switch",
)
generator = torch.Generator().manual_seed(dist.get_rank())

for step in range(1, asked.steps + 1):
    given, wanted = batch_of(text, generator)
    loss = cross_entropy(model(given).flatten(0, 1), wanted.flatten())
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if step % 20 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {mean.item() / dist.get_world_size():.4f}", flush=True)

if dist.get_rank() == 0:
    memory = optimizer.memory()
    print(f"bytes of a worker: {memory}", flush=True)
dist.destroy_process_group()
