"""Measures the memory of workers in sharded trainings, by stage and bits, for `kofn experiment zero --memory`.

    python -m kofn_torch.scripts.sharded_memory WORKERS LAYERS WIDTH BLOCK

Each worker is a thread with its own model, optimizer and ledger. In lockstep the workers make two steps of a perceptron
with equal layers; gradients go in blocks of BLOCK elements. The program prints a list of KeptMemory as JSON: for each
training the memory of the worker that keeps the most. The first entry is Adam without sharding.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

import msgspec
import torch
from torch import nn

import kofn_torch
from kofn_common.config.compress import CompressSection, Residual
from kofn_common.config.schema import Config
from kofn_common.results.memory import KeptMemory, Memory
from kofn_common.wire.packet import WORD_BITS
from kofn_host.collectives import Array
from kofn_host.zero import (
    CODECS,
    CompressedMean,
    ExactCalls,
    Lockstep,
    LockstepCalls,
    LockstepMean,
    LockstepSwitch,
    ZeroSettings,
)

RESIDUALS: tuple[Residual, ...] = get_args(Residual)


class LockstepJob:
    """A ZeroJob of one worker in lockstep."""

    def __init__(self, calls: LockstepCalls, mean: LockstepMean | None) -> None:
        self._calls, self._mean = calls, mean

    def connect(self, units: Sequence[int], settings: ZeroSettings) -> tuple[ExactCalls, CompressedMean | None]:
        return self._calls, self._mean

    def stepped(self, shared: Array, memory: Memory) -> None:
        """Do nothing: there is no controller."""


def model_of(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def not_sharded(model: nn.Sequential) -> Memory:
    optimizer, parameters = torch.optim.Adam(model.parameters()), [*model.parameters()]
    _backward(model)
    optimizer.step()
    state = [tensor for own in optimizer.state.values() for tensor in own.values() if tensor.ndim]
    gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
    sizes = (sum(tensor.nbytes for tensor in tensors) for tensors in (parameters, gradients, state))
    return Memory(**dict(zip(("parameters", "gradients", "optimizer"), sizes, strict=True)))


def sharded(settings: ZeroSettings, workers: int, layers: int, width: int, block: int) -> list[Memory]:
    """Return the memory of each worker."""
    team, elements = Lockstep(workers), layers * (width * width + width)
    switch = _switch(team, settings, elements, block) if settings.bits < 32 else None

    def train(rank: int) -> Memory:
        calls, mean = LockstepCalls(team, rank), None if switch is None else LockstepMean(switch, rank)
        model, job = model_of(layers, width), LockstepJob(calls, mean)
        optimizer = kofn_torch.zero(model, stage=settings.stage, bits=settings.bits, freeze_step=1, job=job)
        for _ in range(2):
            _backward(model)
            optimizer.step()
        return optimizer.memory()

    return team.run(train)


def _backward(model: nn.Sequential) -> None:
    model(torch.ones(1, model[0].in_features)).sum().backward()


def _switch(team: Lockstep, settings: ZeroSettings, elements: int, block: int) -> LockstepSwitch:
    words = block * settings.bits // WORD_BITS
    return LockstepSwitch(
        team,
        elements,
        job=Config.of({"job": {"workers": team.workers, "words": words}}).job,
        compress=CompressSection(codec=CODECS[settings.bits], residual=settings.residual),
        average="contributors" if settings.votes_on_momentum else "gradients",
        k=team.workers,
        seed=1,
    )


def every(workers: int, layers: int, width: int, block: int) -> Iterator[KeptMemory]:
    unsharded = not_sharded(model_of(layers, width))
    yield KeptMemory(stage=0, bits=32, residual="exact", memory=unsharded)
    for stage in (1, 2, 3):
        for bits in (32, 8, 1):
            settings = ZeroSettings(stage=stage, bits=bits, freeze_step=1)
            for residual in RESIDUALS if bits < 32 else RESIDUALS[:1]:
                found = sharded(replace(settings, residual=residual), workers, layers, width, block)
                most = max(found, key=lambda memory: memory.total)
                yield KeptMemory(stage=stage, bits=bits, residual=residual, memory=most)


def main(numbers: Sequence[int]) -> None:
    print(msgspec.json.encode([*every(*numbers)]).decode())


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
