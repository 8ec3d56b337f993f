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

    `total` is the sum of what all workers contributed, in units of 2**-40, shape (blocks, lanes); `missed` counts the
    blocks that this worker is not in. `ks`: the least and the most k that closed one; they differ only while k changes.
    """

    iteration: int
    mean: npt.NDArray[np.float32]
    total: Fixed
    k: int
    ks: tuple[int, int]
    count: int
    members: list[int]
    missed: int

    @property
    def late(self) -> bool:
        """Whether any block was closed without this worker."""
        return self.missed > 0


def aggregate(results: Sequence[Result], *, rank: int, elements: int, divisor: int) -> Aggregate:
    """Average block by block: sum / `divisor`, or where that is 0 by the number of workers in the block's sum."""
    total = wire.unpack_values(b"".join(result.values for result in results)).reshape(len(results), -1)
    scale = np.array([[result.scale] for result in results])
    count = np.array([[divisor or result.count] for result in results])
    first = results[0]
    return Aggregate(
        iteration=first.id.iteration,
        mean=FixedPoint.mean(total, scale, count).ravel()[:elements],
        total=FixedPoint.counted(total, scale),
        k=first.k,
        ks=(min(result.k for result in results), max(result.k for result in results)),
        count=first.count,
        members=wire.members_of(first.members),
        missed=sum(not result.has(rank) for result in results),
    )
