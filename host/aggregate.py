"""What an iteration comes to: the average of its blocks' sums, and who and how much is in it.

The average is the mean of the gradients in a sum (docs/CONTROL.md, "What a sum is divided by").  Late workers bring
what they have stashed, so a sum has more gradients than contributors; divided by these it would be too large a step.
A block that has rested for some iterations brings the gradients of all of them, and makes one step that stands for as
many: the mean of its gradients times their number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from host import wire
from host.coding import Coding
from host.compress import UNIT, Codec, Fixed, decode_packed
from host.encoder import Encoding, Finished
from host.history import Result
from host.kernel import kernel
from host.note import Note
from host.plan import Plan
from run.config import Average


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and who is in it.

    `total` is the sum of what all workers contributed, in units of 2**-40, shape (blocks, elements of a block); 0 where
    nothing was sent, and empty where there are no books (host.direct).  `missed` counts the blocks that this worker is
    not in. `ks`: the least and the most k that closed one; they differ only while k changes.  `gradients` and
    `contributors`: how many are in a block's sum, mean over the blocks.  `least`: the fewest contributors that a block
    has.  `notes`: what workers say beside their gradients (host.note), by rank.  `plan`: the next iteration's.
    `encoding`: what came of this worker's gradient; None where it had no part.
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
    notes: Mapping[int, Note]
    plan: Plan
    encoding: Encoding | None

    @property
    def late(self) -> bool:
        """Whether any block was closed without this worker."""
        return self.missed > 0


def held(results: Sequence[Result]) -> tuple[float, float]:
    """How many gradients and how many contributors are in a block's sum, mean over the blocks."""
    gradients, contributors = (int(_numbers(results, name).sum()) for name in ("gradients", "count"))
    return gradients / len(results), contributors / len(results)


def aggregate(finished: Finished, coding: Coding, *, rank: int, average: Average) -> Aggregate:
    """Average block by block: the sum over what `average` says is in it."""
    results = finished.results
    total = _total(results, coding)
    gradients, contributors = held(results)
    first, ks = results[0], _numbers(results, "k")
    return Aggregate(
        iteration=first.id.iteration,
        mean=kernel().scaled(total, _weights(finished, average)).ravel()[: coding.elements],
        total=total,
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


def _total(results: Sequence[Result], coding: Coding) -> Fixed:
    """What the sums stand for, in units of 2**-40, shape (blocks, elements of a block)."""
    lanes = _numbers(results, "lanes")
    codes = np.unique(lanes).tolist()
    if len(codes) == 1 and len(results) == coding.shape.blocks:  # then nothing is copied
        return _decoded(results, coding.codecs[codes[0]])
    total = np.zeros((coding.shape.blocks, coding.shape.elements), np.int64)
    for code in codes:
        alike = [results[at] for at in np.flatnonzero(lanes == code).tolist()]
        total[_numbers(alike, "id.block")] = _decoded(alike, coding.codecs[code])
    return total


def _decoded(results: Sequence[Result], codec: Codec) -> Fixed:
    """What sums in the same lanes stand for, shape (results, elements of a block)."""
    scale, count = (_numbers(results, name)[:, None] for name in ("scale", "count"))
    return decode_packed(codec, b"".join(map(attrgetter("values"), results)), scale, count)


def _numbers(results: Sequence[Result], name: str) -> npt.NDArray[np.int64]:
    """A field of all results."""
    return np.fromiter(map(attrgetter(name), results), np.int64, len(results))


def _weights(finished: Finished, average: Average) -> npt.NDArray[np.float64]:
    """What a block's total is multiplied by, shape (blocks, 1); 0 where nothing was sent.

    Contributors are divided by without a look at how many gradients each brings, be it for its block's rest or not.
    """
    gap, results = finished.plan.gap, finished.results
    blocks = _numbers(results, "id.block")
    steps = gap[blocks] / _numbers(results, "gradients") if average == "gradients" else 1 / _numbers(results, "count")
    weights = np.zeros(len(gap))
    weights[blocks] = steps * UNIT
    return weights[:, None]
