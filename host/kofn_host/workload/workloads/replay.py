"""Recorded gradients of a user's training instead of a model, over any collective and network.

A folder has .npy files, sorted by name: float32 of any shape, all of one size.  For all gradients of an iteration,
worker r takes file (iteration - 1 + r) modulo the number of files, so that workers send different gradients if there
are enough files.  The parameters are zeros of the same size; nothing is evaluated.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats
from kofn_host.errors import ReplayError
from kofn_host.workload.workload import Workload


class GradientReplay(Workload):
    """Replays the files in the folder model.replay; ReplayError as in load_gradients()."""

    metric = None

    def __init__(self, config: Config, rank: int) -> None:
        self._rank, self._gradients = rank, load_gradients(Path(config.model.replay or ""))
        self.parameters: Floats = np.zeros_like(self._gradients[0])

    def gradient(self, iteration: int, batch: int = 0) -> tuple[None, Floats]:
        """Return a file's values, flat."""
        return None, self._gradients[(iteration - 1 + self._rank) % len(self._gradients)]

    @classmethod
    def check(cls, config: Config) -> None:
        if config.model.replay is None:
            raise ConfigError("model.replay must be given with model.workload = 'replay': a folder of .npy files")
        try:
            load_gradients(Path(config.model.replay))
        except ReplayError as error:
            raise ConfigError(f"model.replay: {error}") from error


def load_gradients(folder: Path) -> Sequence[Floats]:
    """Return the arrays of a folder's files, in order, flat and memory-mapped; ReplayError names a wrong file."""
    files = sorted(folder.glob("*.npy"))
    if not files:
        raise ReplayError(f"{folder} must be a folder with one or more .npy files")
    gradients = [_load(path) for path in files]
    for path, gradient in zip(files, gradients, strict=True):
        if gradient.size != gradients[0].size:
            raise ReplayError(
                f"all gradients must have {gradients[0].size:,} elements, as {files[0].name} has, got"
                f" {gradient.size:,} in {path}"
            )
    return gradients


def _load(path: Path) -> Floats:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ReplayError(f"{path} cannot be read as a NumPy array: {error}") from error
    if values.dtype != np.float32 or not values.size:
        raise ReplayError(f"{path} must have one or more elements of float32, got {values.size} of {values.dtype}")
    return np.ascontiguousarray(values).reshape(-1)


replay = GradientReplay
