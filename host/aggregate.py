"""What an iteration comes to: the average of its blocks' sums, and who is in it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host import wire
from host.compress import Fixed, FixedPoint
from host.history import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it.

    `total` is the sum of what all workers contributed, in units of 2**-40, shape (blocks, lanes).
    """

    iteration: int
    mean: npt.NDArray[np.float32]
    total: Fixed
    k: int
    count: int
    members: list[int]
    late: bool


def aggregate(results: Sequence[Result], *, rank: int, elements: int) -> Aggregate:
    """Average block by block: sum / count of that block, never sum / n; `late`: a block is without this rank."""
    total = wire.unpack_values(b"".join(result.values for result in results)).reshape(len(results), -1)
    scale = np.array([[result.scale] for result in results])
    count = np.array([[result.count] for result in results])
    first = results[0]
    return Aggregate(
        iteration=first.id.iteration,
        mean=FixedPoint.mean(total, scale, count).ravel()[:elements],
        total=FixedPoint.counted(total, scale),
        k=first.k,
        count=first.count,
        members=wire.members_of(first.members),
        late=not all(result.has(rank) for result in results),
    )
