"""What an iteration comes to: the average of its blocks' sums, and who and how much is in it.

The average is the mean of the gradients in a sum (docs/explanation/control.md, "What a sum is divided by").  Late
workers bring what they have pending, so a sum has more gradients than contributors; divided by these it would be too
large a step.  An old gradient may weigh less than one (compression.age_weight): the mean is a weighted one.
A block that has rested for some iterations brings the gradients of all of them, and makes one step that stands for as
many: the mean of its gradients times their number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from kofn.config.schema import Average
from kofn.host.arrays import Fixed
from kofn.host.compression.codec import UNIT, Codec, average_packed
from kofn.host.compression.encoder import Encoding, Finished
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.plan import Plan
from kofn.host.compression.side_values import SideValues
from kofn.host.kernels.kernel import rows_of
from kofn.host.protocol.history import Result
from kofn.host.wire import packet as wire

SLICE = 1 << 17
"""Elements that are decoded at a time, while others are still on their way."""

LAST_SLICE = 1 << 13
"""Of the last ones; before, no more wait than are still to come, so that hardly any do when the last has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it.

    `total` is the sum of what all workers contributed, in units of 2**-40, shape (blocks, elements of a block); 0 where
    nothing was sent, and empty where there is no ledger (training.peer_to_peer).  `missed` counts the blocks that this
    worker is not in. `ks`: the least and the most k that closed one; they differ only while k changes.  `gradients`
    and `contributors`: how many are in a block's sum, mean over the blocks.  `least`: the fewest contributors that a
    block has.  `notes`: what workers say beside their gradients (compression.side_values), by rank.  `plan`: the next
    iteration's. `encoding`: what came of this worker's gradient; None where it had no part.
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
    least: int
    notes: Mapping[int, SideValues]
    plan: Plan
    encoding: Encoding | None

    @property
    def late(self) -> bool:
        """Whether any block was closed without this worker."""
        return self.missed > 0


def held(results: Sequence[Result]) -> tuple[float, float]:
    """How many gradients, by weight, and how many that count are in a block's sum, mean over the blocks."""
    weight, contributors = (int(_numbers(results, name).sum()) for name in ("weight", "count"))
    return weight / wire.WEIGHT_UNIT / len(results), contributors / len(results)


class Sums:
    """An iteration's results, taken in as they come, and what they come to; `plan`: the iteration's.

    `total`, `mean`: as an Aggregate's, in blocks; they lack what has come last until finish().
    """

    def __init__(self, coding: JobCoding, plan: Plan, average: Average) -> None:
        shape = coding.layout.blocks, coding.layout.elements
        new = np.empty if plan.blocks.size == coding.layout.blocks else np.zeros
        self.results: dict[int, Result] = {}
        """By block."""
        self.total: Fixed = new(shape, np.int64)
        self.mean: npt.NDArray[np.float32] = new(shape, np.float32)
        self._coding, self._gap, self._average = coding, plan.gap, average
        self._new: list[Result] = []
        self._to_come = plan.blocks.size
        self._most, self._least = (max(1, elements // coding.layout.elements) for elements in (SLICE, LAST_SLICE))

    def add(self, results: Iterable[Result]) -> None:
        """Results of blocks that have not come before, the summary block perhaps among them."""
        for result in results:
            self.results[result.id.block] = result
            if result.id.block < len(self.total):
                self._new.append(result)
                self._to_come -= 1
            if len(self._new) >= min(self._most, max(self._least, self._to_come)):
                self.finish()

    def finish(self) -> None:
        """What has come is in `total` and `mean`."""
        for code in {result.lanes for result in self._new}:
            self._take([result for result in self._new if result.lanes == code], self._coding.codecs[code])
        self._new = []

    def _take(self, results: Sequence[Result], codec: Codec) -> None:
        """Decode results in the same lanes."""
        blocks = [result.id.block for result in results]
        rows = rows_of(blocks)
        scale, addends = (_numbers(results, name)[:, None] for name in ("scale", "addends"))
        weights, total, mean = self._weights(results, blocks)[:, None], self.total[rows], self.mean[rows]
        average_packed(codec, [result.values for result in results], scale, addends, weights, total=total, mean=mean)
        if not isinstance(rows, slice):
            self.total[rows], self.mean[rows] = total, mean

    def _weights(self, results: Sequence[Result], blocks: Sequence[int]) -> npt.NDArray[np.float64]:
        """What the totals of these are multiplied by, shape (results,).

        Contributors are divided by without a look at how many gradients each brings, be it for its block's rest or not.
        """
        if self._average == "gradients":
            return self._gap[blocks] / _numbers(results, "weight") * (wire.WEIGHT_UNIT * UNIT)
        return UNIT / _numbers(results, "count")


def aggregate(
    finished: Finished, coding: JobCoding, *, rank: int, average: Average, sums: Sums | None = None
) -> Aggregate:
    """Average block by block: the sum over what `average` says is in it; `sums`: of these results, where known."""
    results = finished.results
    if sums is None:
        sums = Sums(coding, finished.plan, average)
        sums.add(results)
    sums.finish()
    gradients, contributors = held(results)
    first, ks = results[0], _numbers(results, "k")
    return Aggregate(
        iteration=first.id.iteration,
        mean=sums.mean.ravel()[: coding.elements],
        total=sums.total,
        k=first.k,
        ks=(int(ks.min()), int(ks.max())),
        count=first.count,
        members=wire.members_of(first.members),
        missed=sum(not result.has(rank) for result in results),
        gradients=gradients,
        contributors=contributors,
        least=int(_numbers(results, "count").min()),
        notes=finished.notes,
        plan=finished.following,
        encoding=finished.encoding,
    )


def _numbers(results: Sequence[Result], name: str) -> npt.NDArray[np.int64]:
    """A field of all results."""
    return np.fromiter(map(attrgetter(name), results), np.int64, len(results))
