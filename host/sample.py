"""Some elements of a long vector that stand for all: runs at even distances, so that few cache lines are touched."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

MOST = 1 << 14
"""Elements that are looked at."""

RUN = 64

Number = TypeVar("Number", bound=np.generic)


def sample(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Of values (N,) all, or where they are more MOST of them."""
    if values.size <= MOST:
        return values
    runs = MOST // RUN
    apart = values.size // runs
    return values[: runs * apart].reshape(runs, apart)[:, :RUN].reshape(-1)
