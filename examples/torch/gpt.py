"""A small GPT that learns this project's documents, character by character: kofn run examples/torch/gpt.toml

With --gloo without the switch: torchrun --nproc-per-node 4 examples/torch/gpt.py --gloo
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import kofn_torch

DOCUMENTS = Path(__file__).parents[2] / "docs"
CONTEXT, BATCH, STEPS = 64, 8, 300


class Block(nn.Module):
    """Attention to earlier characters, then a perceptron; each beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heard = scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.merge(heard)
        return x + self.think(self.between(x))


class GPT(nn.Module):
    """Logits of the next character, (batch, length, characters)."""

    def __init__(self, characters: int, *, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.characters(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.blocks(x)))


def read_text() -> tuple[torch.Tensor, int]:
    """All documents as numbers of characters, and how many characters there are."""
    text = "".join(path.read_text() for path in sorted(DOCUMENTS.rglob("*.md")))
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


def batch_of(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """BATCH pieces of the text, and the same one character later."""
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator).tolist()
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def main() -> None:
    dist.init_process_group("gloo")
    text, characters = read_text()
    model = DistributedDataParallel(GPT(characters))
    if "--gloo" not in sys.argv:
        kofn_torch.ddp_hook(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, STEPS + 1):
        given, wanted = batch_of(text, generator)
        loss = cross_entropy(model(given).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
