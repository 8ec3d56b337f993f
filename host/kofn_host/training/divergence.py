"""Detects diverged training from the parameters, which all replicas share: all stop after the same iteration."""

import numpy as np

from kofn_host.arrays import Floats
from kofn_host.kernels.sample import sample

GROWTH = 100.0
"""Limit of the parameters' root mean square, divided by its initial value (by 1 if the initial value is 0).  On the
digits, trainings that learn stay below 11, and trainings that diverge end above 200."""

DIVERGED = "diverged"
"""The reason of a worker's end."""


class Divergence:
    """Watches parameters that change in place; it samples at most 16,384 of them (kernels.sample)."""

    def __init__(self, parameters: Floats) -> None:
        self._parameters = parameters
        self._limit = GROWTH * (_rms(parameters) or 1.0)

    def seen(self) -> bool:
        """Return whether the parameters are not finite, or too large for a training that still learns."""
        return not _rms(self._parameters) <= self._limit


def _rms(parameters: Floats) -> float:
    """Return the root mean square: float64, in element order, so the same bits on every replica."""
    return float(np.sqrt(np.mean(np.square(sample(parameters), dtype=np.float64))))
