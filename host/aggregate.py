"""What an iteration comes to: the average of its blocks' sums, and who and how much is in it.

The average is the mean of the gradients in a sum (docs/CONTROL.md, "What a sum is divided by").  Late workers bring
what they have stashed, so a sum has more gradients than contributors; divided by these it would be too large a step.
A block that has rested for some iterations brings the gradients of all of them, and makes one step that stands for as
many: the mean of its gradients times their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host import wire
from host.coding import Coding
from host.compress import UNIT, Fixed
from host.encoder import Encoding, Finished
from host.history import Result
from host.kernel import kernel
from host.lanes import unpack, width_of
from host.plan import Plan
from run.config import Average


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it.

    `total` is the sum of what all workers contributed, in units of 2**-40, shape (blocks, elements of a block); 0 where
    nothing was sent.  `missed` counts the blocks that this worker is not in. `ks`: the least and the most k that closed
    one; they differ only while k changes.  `gradients` and `contributors`: how many are in a block's sum, mean over the
    blocks.  `plan`: the next iteration's.  `encoding`: what came of this worker's gradient; None where it had no part.
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
    plan: Plan
    encoding: Encoding | None

    @property
    def late(self) -> bool:
        """Whether any block was closed without this worker."""
        return self.missed > 0


def held(results: Sequence[Result]) -> tuple[float, float]:
    """How many gradients and how many contributors are in a block's sum, mean over the blocks."""
    gradients, contributors = (sum(getattr(result, name) for result in results) for name in ("gradients", "count"))
    return gradients / len(results), contributors / len(results)


def aggregate(finished: Finished, coding: Coding, *, rank: int, average: Average) -> Aggregate:
    """Average block by block: the sum over what `average` says is in it."""
    results = finished.results
    total = _total(results, coding)
    gradients, contributors = held(results)
    first = results[0]
    return Aggregate(
        iteration=first.id.iteration,
        mean=kernel().scaled(total, _weights(finished, average)).ravel()[: coding.elements],
        total=total,
        k=first.k,
        ks=(min(result.k for result in results), max(result.k for result in results)),
        count=first.count,
        members=wire.members_of(first.members),
        missed=sum(not result.has(rank) for result in results),
        gradients=gradients,
        contributors=contributors,
        plan=finished.following,
        encoding=finished.encoding,
    )


def _total(results: Sequence[Result], coding: Coding) -> Fixed:
    """What the sums stand for, in units of 2**-40, shape (blocks, elements of a block)."""
    total = np.zeros((coding.shape.blocks, coding.shape.elements), np.int64)
    lanes = np.array([result.lanes for result in results])
    for code in np.unique(lanes).tolist():
        alike = [result for result in results if result.lanes == code]
        sums = unpack(b"".join(result.values for result in alike), width_of(code), signed=coding.codecs[code].signed)
        blocks, scale, count = np.array([(result.id.block, result.scale, result.count) for result in alike]).T
        decoded = coding.codecs[code].decode(sums.reshape(len(alike), -1), scale[:, None], count[:, None])
        if len(alike) == len(total):
            return decoded
        total[blocks] = decoded
    return total


def _weights(finished: Finished, average: Average) -> npt.NDArray[np.float64]:
    """What a block's total is multiplied by, shape (blocks, 1); 0 where nothing was sent.

    Contributors are divided by without a look at how many gradients each brings, be it for its block's rest or not.
    """
    gap = finished.plan.gap
    weights = np.zeros(len(gap))
    for result in finished.results:
        block = result.id.block
        steps = gap[block] / result.gradients if average == "gradients" else 1 / result.count
        weights[block] = steps * UNIT
    return weights[:, None]
