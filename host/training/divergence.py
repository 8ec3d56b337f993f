"""Whether a training has diverged, from what all replicas have alike, so that all stop after the same iteration."""

import numpy as np

from kofn.host.arrays import Floats
from kofn.host.kernels.sample import sample

GROWTH = 100.0
"""Root mean square of the parameters, over what it was at first, or over 1 where they were zeros: trainings that learn
the digits stay below 11, those that have diverged for good are above 200."""

DIVERGED = "diverged"
"""Why a worker ended."""


class Divergence:
    """Watches parameters that change in place: at most 16,384 of them are looked at (host.kernels.sample)."""

    def __init__(self, parameters: Floats) -> None:
        self._parameters = parameters
        self._limit = GROWTH * (_rms(parameters) or 1.0)

    def seen(self) -> bool:
        """Whether they are not finite, or larger than any training makes them that still learns."""
        return not _rms(self._parameters) <= self._limit


def _rms(parameters: Floats) -> float:
    """In float64, in the order of the elements: the same bits on every replica."""
    return float(np.sqrt(np.mean(np.square(sample(parameters), dtype=np.float64))))
