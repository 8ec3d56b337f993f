"""The small GPT of examples/torch/gpt.py as a workload: it learns this project's documents, character by character."""

import runpy
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from kofn import Metric, TorchWorkload

GPT = runpy.run_path(str(Path(__file__).parents[1] / "torch" / "gpt.py"), run_name="gpt")


class SmallGPT(TorchWorkload):
    """A tenth of the text is held out."""

    metric = Metric(name="loss", better="lower", target=2.5)

    def build_module(self):
        text, characters = GPT["read_text"]()
        self.text, self.held_out = text[: -len(text) // 10], text[-len(text) // 10 :]
        module = GPT["GPT"](characters)
        sizes = {}
        for name, parameter in module.named_parameters():
            sizes.setdefault(name.rpartition(".")[0], []).append(parameter.numel())
        self.units = list(sizes.values())  # of layers, for examples/experiments/zero.toml
        return module

    def build_optimizer(self):
        return torch.optim.Adam(self.module.parameters(), lr=2e-3)

    def loss(self, iteration, batch):
        generator = torch.Generator().manual_seed(hash((self.config.run.seed, self.rank, iteration, batch)))
        return self._loss_of(*GPT["batch_of"](self.text, generator))

    @torch.no_grad()
    def evaluate(self):
        generator = torch.Generator().manual_seed(1)
        losses = [self._loss_of(*GPT["batch_of"](self.held_out, generator)) for _ in range(8)]
        return torch.stack(losses).mean().item()

    def _loss_of(self, given, wanted):
        return cross_entropy(self.module(given).flatten(0, 1), wanted.flatten())
