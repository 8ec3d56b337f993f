"""What an iteration comes to: the average of its blocks' sums, and who and how much is in it.

The average is the mean of the gradients in a sum (docs/explanation/control.md, "What a sum is divided by").  Late
workers bring what they have pending, so a sum has more gradients than contributors; divided by these it would be too
large a step.  An old gradient may weigh less than one (compression.age_weight): the mean is a weighted one.
A block that has rested for some iterations brings the gradients of all of them, and makes one step that stands for as
many: the mean of its gradients times their number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn.config.schema import Average
from kofn.host.arrays import Integers
from kofn.host.compression.codec import UNIT, Codec, average_packed
from kofn.host.compression.encoder import Encoding, Finished
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.ledger_native import checksums
from kofn.host.compression.plan import Plan
from kofn.host.compression.side_values import SideValues
from kofn.host.kernels.kernel import rows_of
from kofn.host.protocol.results import BlockResults
from kofn.host.wire import packet as wire

SLICE = 1 << 17
"""Elements that are decoded at a time, while others are still on their way."""

LAST_SLICE = 1 << 13
"""Of the last ones; before, no more wait than are still to come, so that hardly any do when the last has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it.

    `checksums` are those of the sums of what all workers contributed (compression.ledger_native), shape (blocks,); 0
    where nothing was sent, and empty where there is no ledger (training.peer_to_peer).  `missed` counts the blocks that
    this worker is not in. `ks`: the least and the most k that closed one; they differ only while k changes.
    `gradients` and `contributors`: how many are in a block's sum, mean over the blocks.  `least`: the fewest
    contributors that a block has.  `notes`: what workers say beside their gradients (compression.side_values), by rank.
    `plan`: the next iteration's. `encoding`: what came of this worker's gradient; None where it had no part.
    """

    iteration: int
    mean: npt.NDArray[np.float32]
    checksums: Integers
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


def held(results: BlockResults) -> tuple[float, float]:
    """How many gradients, by weight, and how many that count are in a block's sum, mean over the blocks."""
    weight, contributors = (int(results.numbers(name).sum()) for name in ("weight", "count"))
    return weight / wire.WEIGHT_UNIT / len(results), contributors / len(results)


def missed(results: BlockResults, rank: int) -> int:
    """Of how many blocks' sums this rank's part 0 is not in."""
    return int((results.parts_of(rank) & 1 == 0).sum())


class Sums:
    """What an iteration's results come to, taken in as they come; `plan`: the iteration's.

    `checksums`, `mean`: as an Aggregate's, the mean in blocks; `closed`, (blocks,): which of these are in them, or were
    not sent.  They lack what has come last until finish().
    """

    def __init__(self, coding: JobCoding, plan: Plan, average: Average) -> None:
        shape = coding.layout.blocks, coding.layout.elements
        new = np.empty if plan.blocks.size == coding.layout.blocks else np.zeros
        self.checksums: Integers = np.zeros(coding.layout.blocks, np.int64)
        self.mean: npt.NDArray[np.float32] = new(shape, np.float32)
        self.closed = np.ones(coding.layout.blocks, np.bool_)
        self.closed[plan.blocks] = False
        self._coding, self._gap, self._average = coding, plan.gap, average
        self._new: list[BlockResults] = []
        self._new_count, self._to_come = 0, plan.blocks.size
        self._most, self._least = (max(1, elements // coding.layout.elements) for elements in (SLICE, LAST_SLICE))

    def add(self, results: BlockResults) -> None:
        """Results of blocks that have not come before, the summary block perhaps among them."""
        ours = results[results.blocks < len(self.mean)]
        self._new.append(ours)
        self._new_count += len(ours)
        self._to_come -= len(ours)
        if self._new_count >= min(self._most, max(self._least, self._to_come)):
            self.finish()

    def finish(self) -> None:
        """What has come is in `checksums` and `mean`."""
        if self._new:
            results = BlockResults.joined(self._new)
            lanes = results.numbers("lanes")
            for code in np.unique(lanes).tolist():
                alike = results[lanes == code]
                for begin in range(0, len(alike), self._most):
                    self._take(alike[begin : begin + self._most], self._coding.codecs[code])
        self._new, self._new_count = [], 0

    def _take(self, results: BlockResults, codec: Codec) -> None:
        """Decode results in the same lanes."""
        rows = rows_of(results.blocks.tolist())
        scale, addends = results.numbers("scale")[:, None], results.addends[:, None]
        weights, mean = self._weights(results)[:, None], self.mean[rows]
        total = np.empty(mean.shape, np.int64)
        average_packed(codec, results, scale, addends, weights, total=total, mean=mean)
        self.checksums[rows] = checksums(total)
        if not isinstance(rows, slice):
            self.mean[rows] = mean
        self.closed[rows] = True

    def _weights(self, results: BlockResults) -> npt.NDArray[np.float64]:
        """What the totals of these are multiplied by, shape (results,).

        Contributors are divided by without a look at how many gradients each brings, be it for its block's rest or not.
        """
        if self._average == "gradients":
            return self._gap[results.blocks] / results.numbers("weight") * (wire.WEIGHT_UNIT * UNIT)
        return UNIT / results.numbers("count")


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
    ks, counts = results.numbers("k"), results.numbers("count")
    return Aggregate(
        iteration=results.iteration,
        mean=sums.mean.ravel()[: coding.elements],
        checksums=sums.checksums,
        k=int(ks[0]),
        ks=(int(ks.min()), int(ks.max())),
        count=int(counts[0]),
        members=wire.members_of(results.members(0)),
        missed=missed(results, rank),
        gradients=gradients,
        contributors=contributors,
        least=int(counts.min()),
        notes=finished.notes,
        plan=finished.following,
        encoding=finished.encoding,
    )
