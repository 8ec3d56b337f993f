"""The laws of [[straggler]]: uniform draws by index, and the quantiles of a law at these draws."""

import bisect
import functools
import math
from itertools import accumulate

import numpy as np

from kofn_common.config.stragglers import StragglerSection
from kofn_host.arrays import Floats64

DRAWN = 256
"""Uniform numbers that are drawn at once."""

FARTHEST = 12.0
"""The number of standard deviations from the mean beyond which a count has no probability."""

NEVER = StragglerSection(workers=(), mean_ms=0.0)
"""The entry of a worker that no [[straggler]] names."""


def uniforms(seed: tuple[int, ...], part: int, batch: int = 0) -> np.random.Generator:
    """Return the generator of the `part`-th portion of DRAWN uniform numbers of this seed."""
    return np.random.default_rng((*seed, part, batch) if batch else (*seed, part))


class UniformDraws:
    """Uniform numbers from 0 to 1, by index."""

    def __init__(self, *seed: int) -> None:
        self.seed = seed
        self._drawn: dict[int, tuple[int, list[float]]] = {}  # by batch

    def uniform(self, at: int, batch: int = 0) -> float:
        """Return the number with this index; DRAWN numbers are drawn at once."""
        part, index = divmod(at, DRAWN)
        drawn, draws = self._drawn.get(batch, (-1, []))
        if part != drawn:
            draws = uniforms(self.seed, part, batch).random(DRAWN).tolist()
            self._drawn[batch] = part, draws
        return draws[index]


def quantile(entry: StragglerSection, level: float) -> float:
    """Return the seconds that this entry's blocking time does not exceed with probability `level`."""
    mean_s = entry.mean_ms / 1000
    if entry.law == "constant":
        return mean_s
    if entry.law == "exponential":
        return -mean_s * math.log1p(-level)
    if entry.law == "pareto":  # a Pareto law of the second kind: it begins at 0, and its scale is the mean
        return mean_s * (1 / math.sqrt(1 - level) - 1)
    event_s = entry.event_ms / 1000
    least, distribution = _distribution(mean_s / event_s)
    return (least + bisect.bisect_left(distribution, level)) * event_s


def quantiles(entry: StragglerSection, levels: Floats64) -> Floats64:
    """Return quantile() of many levels, in the shape of `levels`."""
    mean_s = entry.mean_ms / 1000
    if entry.law == "constant":
        return np.full(levels.shape, mean_s)
    if entry.law == "exponential":
        return np.asarray(-mean_s * np.log1p(-levels))
    if entry.law == "pareto":
        return np.asarray(mean_s * (1 / np.sqrt(1 - levels) - 1))
    event_s = entry.event_ms / 1000
    least, distribution = _distribution(mean_s / event_s)
    return np.asarray((least + np.searchsorted(distribution, levels)) * event_s)


@functools.lru_cache(maxsize=256)
def _distribution(mean: float) -> tuple[int, list[float]]:
    """Return the least possible count, and P(N <= count) for this and the following counts, until P is about 1."""
    if not mean:
        return 0, [1.0]
    far = int(FARTHEST * math.sqrt(mean)) + 32
    least, most = max(int(mean) - far, 0), int(mean) + far
    counts = range(least, most)
    return least, list(accumulate(math.exp(n * math.log(mean) - mean - math.lgamma(n + 1)) for n in counts))
