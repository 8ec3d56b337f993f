"""What is asked of whole vectors: a sample of their elements, their norm, and whether two are the same."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from kofn.host.arrays import Floats

MOST = 1 << 14
"""Elements that are looked at."""

RUN = 64

Number = TypeVar("Number", bound=np.generic)


def sample(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Of values (N,) all, or where they are more MOST of them: runs at even distances, which touch few cache lines."""
    if values.size <= MOST:
        return values
    runs = MOST // RUN
    apart = values.size // runs
    return values[: runs * apart].reshape(runs, apart)[:, :RUN].reshape(-1)


def norm2(values: Floats) -> float:
    """The sum of squares to six digits; of more than MOST values it is estimated from a sample."""
    looked_at = sample(values)
    return float(np.dot(looked_at, looked_at)) * (values.size / looked_at.size)


def fingerprint(*parameters: npt.NDArray[Any]) -> str:
    """64 bits of a hash over the parameters' bytes: equal on two replicas when they are bit-identical.

    Several arrays have that of one that is made of them.
    """
    found = xxhash.xxh3_64()
    for part in parameters:
        found.update(part.data)
    return found.hexdigest()
