"""A GPT of ten million parameters that learns kofn_torch's source, byte by byte, for compare-torch.toml.

    kofn run mine.toml --torch pytorch/kofn_torch/scripts/gpt.py

With the argument --elastic the program calls kofn_torch.elastic(), without it kofn_torch.ddp_hook().
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import kofn_torch

WIDTH, LAYERS, HEADS, CONTEXT, BYTES = 384, 6, 6, 64, 256


class GPT(nn.Module):  # type: ignore[misc]  # no types of PyTorch's are read
    """Logits of the next byte, (batch, length, BYTES)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.characters, self.places = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, BYTES)
        self.register_buffer("earlier", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        embedded = self.characters(text) + self.places(torch.arange(CONTEXT))
        logits: torch.Tensor = self.head(self.layers(embedded, mask=self.earlier, is_causal=True))
        return logits


def batches(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pieces of the source, each with the piece that begins one byte later; each rank draws other pieces."""
    source = b"".join(path.read_bytes() for path in sorted(Path(kofn_torch.__file__).parent.glob("*.py")))
    text, generator = torch.frombuffer(bytearray(source), dtype=torch.uint8).long(), torch.Generator().manual_seed(rank)
    while True:
        start = int(torch.randint(len(text) - CONTEXT - 1, (), generator=generator))
        piece = text[start : start + CONTEXT + 1]
        yield piece[None, :-1], piece[None, 1:]


def main(*, elastic: bool) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT(), gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session = kofn_torch.elastic(model, optimizer) if elastic else kofn_torch.ddp_hook(model)
    given = batches(session.rank)
    for _ in range(session.iterations):
        if session.done():
            break
        text, wanted = next(given)
        loss = cross_entropy(model(text).flatten(0, 1), wanted.flatten())
        session.loss = loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    session.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(elastic="--elastic" in sys.argv)
