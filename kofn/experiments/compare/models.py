"""The models of `kofn compare`: a model that is trained, and larger models whose recorded gradients are replayed.

An MLP of the larger model's size computes these gradients once, on digits. Every contender gets the same gradients.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.shards import CLASSES
from kofn_common.places import folder_of
from kofn_host.errors import HostError
from kofn_host.workload import PIXELS, Momentum, Perceptron, load_gradients, load_shard

DIGITS = "digits"
"""The trained model."""

HIDDEN: dict[str, tuple[int, ...]] = {DIGITS: (64,), "1m": (960, 960), "10m": (3120, 3120)}
"""Units of the hidden layers, by model."""

GPT, GPT_ELEMENTS = "gpt", 10_868_992
"""The model that a script trains in PyTorch's DistributedDataParallel, and its number of parameters."""

GPT_SCRIPT = folder_of("kofn_torch") / "scripts" / "gpt.py"

NAMES = (*HIDDEN, GPT)

OWN = "replay"
"""The model whose gradients are in a folder of the user."""

GRADIENTS = "gradients"
"""The folder of captured gradients in a comparison's folder."""

FILES = 4
"""The number of gradients, of successive iterations, that are captured."""

SEED, BATCH, RATE, MOMENTUM = 1, 32, 0.01, 0.9
"""The training whose gradients are captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientModel:
    """A model as a source of gradients; `replay` is the folder of recorded gradients, None if the model is trained."""

    name: str
    elements: int
    replay: Path | None = None

    @property
    def base(self) -> str:
        """The name of the configuration in kofn/experiments/compare."""
        return self.name if self.name in (DIGITS, GPT) else "replay"

    @property
    def title(self) -> str:
        kind = ", DDP of PyTorch" if self.scripted else ""
        return f"{self.name} ({self.elements:,} parameters{kind})"

    @property
    def scripted(self) -> bool:
        """Whether a PyTorch script trains the model, for a fixed number of iterations."""
        return self.name == GPT

    @property
    def blocked_ms(self) -> float:
        """The blocked worker's mean blocking in an iteration."""
        return 3000.0 if self.scripted else 60.0


def elements_of(hidden: Sequence[int]) -> int:
    """Return the number of parameters of the MLP with these hidden layers."""
    return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise((PIXELS, *hidden, CLASSES)))


def models(names: Sequence[str], folder: Path, replay: Path | None) -> list[GradientModel]:
    """Return the models with these names, with gradients below `folder`, and the model of the user's folder `replay`.
    Raise ConfigError for a wrong `replay`."""
    found = [
        GradientModel(
            name=name,
            elements=elements_of(HIDDEN[name]),
            replay=None if name == DIGITS else (folder / GRADIENTS / name).resolve(),
        )
        for name in HIDDEN
        if name in names
    ]
    found += [GradientModel(name=GPT, elements=GPT_ELEMENTS)] if GPT in names else []
    return (
        found
        if replay is None
        else [*found, GradientModel(name=OWN, elements=_elements_in(replay), replay=replay.resolve())]
    )


def large(folder: Path) -> GradientModel:
    """Return the model for measuring the ceiling."""
    (model,) = models(["1m"], folder, None)
    return model


def _elements_in(folder: Path) -> int:
    try:
        return load_gradients(folder)[0].size
    except HostError as error:
        raise ConfigError(f"--replay: {error}") from None


def capture(model: GradientModel) -> bool:
    """Capture a model's gradients unless they exist; return whether they were captured."""
    if model.replay is None or model.name == OWN or model.replay.exists():
        return False
    model.replay.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{model.name}-", dir=model.replay.parent))
    try:
        _train_into(unfinished, HIDDEN[model.name])
        unfinished.chmod(0o755)
        os.replace(unfinished, model.replay)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return True


def _train_into(folder: Path, hidden: tuple[int, ...]) -> None:
    """Write the gradients of the first iterations of a training by one worker."""
    shard, perceptron = load_shard(0, 1, SEED), Perceptron(hidden, SEED)
    optimizer = Momentum(perceptron.parameters, rate=RATE, momentum=MOMENTUM)
    for iteration in range(1, FILES + 1):
        _, gradient = perceptron.gradient(shard.batch(iteration, BATCH))
        np.save(folder / f"gradient-{iteration}.npy", gradient)
        optimizer.step(gradient)
