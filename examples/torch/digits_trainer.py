"""Digits by Hugging Face's Trainer (pip install transformers accelerate), and one line more:

    kofn run examples/torch/digits_ddp.toml --torch examples/torch/digits_trainer.py

With --gloo it is plain: torchrun --nproc-per-node 4 examples/torch/digits_trainer.py --gloo
"""

import sys

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import kofn_torch
from kofn import load_shard


class Digits(nn.Module):
    """A perceptron, as Trainer wants it: with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class ThroughTheSwitch(TrainerCallback):
    """Once Trainer has made its DistributedDataParallel."""

    def on_train_begin(self, *given: object, **named: object) -> None:
        kofn_torch.ddp_hook(trainer.model_wrapped)  # the line


batches = [load_shard(0, 1, seed=1).batch(step, 32) for step in range(1, 401)]  # Trainer deals them out
rows = [
    {"images": torch.from_numpy(image), "labels": torch.tensor(label)}
    for batch in batches
    for image, label in zip(batch.images, batch.labels, strict=True)
]
trainer = Trainer(
    model=Digits(),
    args=TrainingArguments(
        use_cpu=True,
        max_steps=200,
        per_device_train_batch_size=32,
        logging_steps=50,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=rows,
    callbacks=[] if "--gloo" in sys.argv else [ThroughTheSwitch],
)
trainer.train()
