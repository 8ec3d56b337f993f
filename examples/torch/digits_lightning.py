"""Digits by Lightning (pip install lightning), and one line more:

    kofn run examples/torch/digits_ddp.toml --torch examples/torch/digits_lightning.py

With --gloo it is plain: torchrun --nproc-per-node 4 examples/torch/digits_lightning.py --gloo
"""

import os
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kofn_torch
from kofn import load_shard


class Digits(lightning.LightningModule):
    """A perceptron, by its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def on_train_start(self) -> None:
        if "--gloo" not in sys.argv:
            kofn_torch.ddp_hook(self.trainer.strategy.model)  # the line: the strategy's is a DistributedDataParallel

    def training_step(self, batch: list[torch.Tensor], at: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        if (at + 1) % 50 == 0 and self.global_rank == 0:
            print(f"step {at + 1}: loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def batches(rank: int, workers: int) -> DataLoader:
    shard = load_shard(rank, workers, seed=1)
    given = [shard.batch(step, 32) for step in range(1, 201)]
    images, labels = (
        torch.cat([torch.from_numpy(getattr(each, name)) for each in given]) for name in ("images", "labels")
    )
    return DataLoader(TensorDataset(images, labels), batch_size=32)


rank, workers, here = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    num_nodes=workers // here,
    devices=here,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    use_distributed_sampler=False,  # each worker has its own data
)
trainer.fit(Digits(), batches(rank, workers))
