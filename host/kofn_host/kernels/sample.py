"""Samples and norms of whole vectors."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats

MOST = 1 << 14
"""The most elements of a sample."""

RUN = 64

Number = TypeVar("Number", bound=np.generic)


def sample(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return values (N,); if there are more than MOST, a sample: runs at even distances, which need few cache lines."""
    if values.size <= MOST:
        return values
    runs = MOST // RUN
    apart = values.size // runs
    return values[: runs * apart].reshape(runs, apart)[:, :RUN].reshape(-1)


def norm2(values: Floats) -> float:
    """Return the sum of squares to six digits; with more than MOST values the sum is estimated from a sample."""
    looked_at = sample(values)
    return float(np.dot(looked_at, looked_at)) * (values.size / looked_at.size)
