"""What an iteration comes to: the average of its blocks' sums, and who and how much is in it.

The average is the mean of the gradients in a sum (docs/CONTROL.md, "What a sum is divided by").  Late workers bring
what they have stashed, so a sum has more gradients than contributors; divided by these it would be too large a step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host import wire
from host.compress import Fixed, FixedPoint, to_mean
from host.history import Result
from host.lanes import unpack
from run.config import Average


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it.

    `total` is the sum of what all workers contributed, in units of 2**-40, shape (blocks, lanes); `missed` counts the
    blocks that this worker is not in. `ks`: the least and the most k that closed one; they differ only while k changes.
    `gradients` and `contributors`: how many are in a block's sum, mean over the blocks.
    """

    iteration: int
    mean: npt.NDArray[np.float32]
    total: Fixed
    k: int
    ks: tuple[int, int]
    count: int
    members: list[int]
    missed: int
    gradients: float
    contributors: float

    @property
    def late(self) -> bool:
        """Whether any block was closed without this worker."""
        return self.missed > 0


def held(results: Sequence[Result]) -> tuple[float, float]:
    """How many gradients and how many contributors are in a block's sum, mean over the blocks."""
    gradients, contributors = (sum(getattr(result, name) for result in results) for name in ("gradients", "count"))
    return gradients / len(results), contributors / len(results)


def aggregate(results: Sequence[Result], *, rank: int, elements: int, average: Average) -> Aggregate:
    """Average block by block: the sum over what `average` says is in it."""
    lanes = unpack(b"".join(result.values for result in results), 32).reshape(len(results), -1)
    scale = np.array([[result.scale] for result in results])
    counts = [[result.gradients if average == "gradients" else result.count] for result in results]
    total = FixedPoint.decode(lanes, scale, np.array([[result.count] for result in results]))
    first = results[0]
    gradients, contributors = held(results)
    return Aggregate(
        iteration=first.id.iteration,
        mean=to_mean(total, np.array(counts)).ravel()[:elements],
        total=total,
        k=first.k,
        ks=(min(result.k for result in results), max(result.k for result in results)),
        count=first.count,
        members=wire.members_of(first.members),
        missed=sum(not result.has(rank) for result in results),
        gradients=gradients,
        contributors=contributors,
    )
