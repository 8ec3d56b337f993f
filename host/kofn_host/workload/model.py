"""Small networks in NumPy for the digits of UCI and scikit-learn: 8 x 8 grey images, 10 classes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kofn_common.config.shards import CLASSES
from kofn_common.config.shards import ShardSection as ClassShard
from kofn_host.arrays import Floats
from kofn_host.workload.neural_network import Convolution, Dense, NeuralNetwork

Labels = npt.NDArray[np.int64]

DIGITS = Path(__file__).with_name("digits.npz")

SIDE = 8
PIXELS = SIDE * SIDE
HELD_OUT = 360
"""Number of held-out images, a fifth of 1,797."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Images, shape (n, 64) in 0..1, and their labels, shape (n,)."""

    images: Floats
    labels: Labels

    def of(self, classes: Sequence[int]) -> "Batch":
        chosen = np.isin(self.labels, classes)
        return Batch(self.images[chosen], self.labels[chosen])


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker's data: its share of the training images, and the held-out images, which all workers share."""

    train: Batch
    held_out: Batch
    seed: tuple[int, int]

    def batch(self, iteration: int, size: int, number: int = 0) -> Batch:
        """Return a batch's images, drawn by the seed, the iteration and the batch's `number` in the iteration only."""
        choice = np.random.default_rng((*self.seed, iteration, 1 + number)).integers(len(self.train.labels), size=size)
        return Batch(self.train.images[choice], self.train.labels[choice])


def load_shard(
    rank: int, workers: int, seed: int, owned: Sequence[ClassShard] = (), dirichlet: float | None = None
) -> Shard:
    """Return one worker's shard, as load_shards() does."""
    (shard,) = load_shards([rank], workers, seed, owned, dirichlet)
    return shard


def load_shards(
    ranks: Iterable[int],
    workers: int,
    seed: int,
    owned: Sequence[ClassShard] = (),
    dirichlet: float | None = None,
) -> list[Shard]:
    """Return each rank's data.

    A rank that `owned` names gets all training images of the classes that `owned` gives it.  The other ranks share the
    other images equally.

    Images are dealt one by one after a common shuffle. With `dirichlet`, each class is divided by shares drawn from a
    Dirichlet distribution with this concentration (Hsu et al., 2019, arXiv:1909.06335).
    """
    pixels, digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits))
    images, labels = (pixels[order] / 16).astype(np.float32), digits[order]
    held_out = Batch(images[:HELD_OUT], labels[:HELD_OUT])
    trained = Batch(images[HELD_OUT:], labels[HELD_OUT:])
    if dirichlet is None:
        dealt = {rank: _dealt(rank, workers, trained.labels, owned) for rank in ranks}
    else:
        divided = _divided(trained.labels, workers, dirichlet, seed)
        dealt = {rank: divided[rank] for rank in ranks}
    return [
        Shard(Batch(trained.images[mine], trained.labels[mine]), held_out, (seed, rank)) for rank, mine in dealt.items()
    ]


@cache
def load_digits() -> tuple[npt.NDArray[np.float64], Labels]:
    """Return pixels 0..16, shape (1797, 64), and labels, shape (1797,); digits.txt names their source."""
    with np.load(DIGITS) as file:
        return file["images"].astype(np.float64), file["labels"].astype(np.int64)


def _dealt(rank: int, workers: int, labels: Labels, owned: Sequence[ClassShard]) -> npt.NDArray[np.intp]:
    """Return the numbers of a worker's training images, ascending."""
    classes = {shard.worker: shard.classes for shard in owned}
    if rank in classes:
        return np.flatnonzero(np.isin(labels, classes[rank]))
    sharing = [worker for worker in range(workers) if worker not in classes]
    free = np.flatnonzero(~np.isin(labels, [label for given in classes.values() for label in given]))
    return free[sharing.index(rank) :: len(sharing)]


def _divided(labels: Labels, workers: int, concentration: float, seed: int) -> list[npt.NDArray[np.intp]]:
    """Return each worker's training images; a worker without an image takes one from the largest share."""
    random = np.random.default_rng((seed, workers))
    parts: list[list[int]] = [[] for _ in range(workers)]
    for label in range(CLASSES):
        images, shares = np.flatnonzero(labels == label), random.dirichlet(np.full(workers, concentration))
        ends = (np.cumsum(shares)[:-1] * len(images)).astype(int)
        for mine, given in zip(parts, np.split(images, ends), strict=True):
            mine.extend(given.tolist())
    for mine in parts:
        if not mine:
            mine.append(max(parts, key=len).pop())
    return [np.sort(np.array(mine, dtype=np.intp)) for mine in parts]


class Perceptron(NeuralNetwork):
    """Dense layers with ReLU between them, for the digits."""

    def __init__(self, hidden: tuple[int, ...], seed: int) -> None:
        sizes = (PIXELS, *hidden, CLASSES)
        super().__init__([Dense(*pair) for pair in pairwise(sizes)], seed)


class Convolutional(NeuralNetwork):
    """3 x 3 convolutions with `channels`, ReLU between them, and a dense layer, for the digits."""

    def __init__(self, channels: tuple[int, ...], seed: int) -> None:
        convolutions = [Convolution(SIDE, *pair) for pair in pairwise((1, *channels))]
        super().__init__([*convolutions, Dense(PIXELS * channels[-1], CLASSES)], seed)
