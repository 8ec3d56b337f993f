"""A PyTorch model trained through the switch: a perceptron with Adam on this worker's share of the digits."""

import torch
from torch import nn

from kofn import TorchWorkload, load_shard


class TorchDigits(TorchWorkload):
    """`self.config` and `self.rank` say whose it is."""

    def build_module(self):
        self.data = load_shard(self.rank, self.config.job.workers, self.config.run.seed)
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def build_optimizer(self):
        return torch.optim.Adam(self.module.parameters(), lr=3e-3)

    def loss(self, iteration, batch):
        data = self.data.batch(iteration, self.config.model.batch, batch)
        return nn.functional.cross_entropy(self.module(torch.from_numpy(data.images)), torch.from_numpy(data.labels))

    @torch.no_grad()
    def evaluate(self):
        guessed = self.module(torch.from_numpy(self.data.held_out.images)).argmax(dim=1)
        return float((guessed.numpy() == self.data.held_out.labels).mean())
