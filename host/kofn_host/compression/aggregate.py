"""An iteration's aggregate: the average of its blocks' sums, with their members and counts.

The average is the mean of the gradients in a sum (docs/explanation/control.md, "What a sum is divided by").  Late
workers add pending gradients, so a sum has more gradients than contributors.  If the sum were divided by the number of
contributors, the step would be too large.  Old gradients may weigh less than one (compression.age_weight), so the mean
is weighted.  A block that was not sent for some iterations then carries the gradients of all of these iterations.  One
step of that block replaces one step per iteration, so this step is the mean of the gradients times the number of
iterations.
"""

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from kofn_common.config.model import Average
from kofn_common.wire import packet as wire
from kofn_common.wire.packet import WIDTHS
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host import structs
from kofn_host.arrays import Floats, Floats64, Integers
from kofn_host.compression.codec import FRACTION_BITS, UNIT, average_packed
from kofn_host.compression.encoder import Finished
from kofn_host.compression.encoding import Encoding
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.ledger_native import factors_of
from kofn_host.compression.plan import Plan
from kofn_host.compression.reduction_native import NativeReduction
from kofn_host.compression.side_values import SideValues
from kofn_host.compression.sums_native import library
from kofn_host.errors import CodecError
from kofn_host.kernels.lanes import CODES
from kofn_host.protocol.results import BlockResults, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One finished iteration: the averaged gradient, float32, shape (elements,), and its members.

    `checksums`: the checksums of the sums (compression.ledger_native), shape (blocks,); 0 for blocks that were not
    sent, empty without a ledger (training.peer_to_peer).  `missed`: number of blocks without this worker.  `ks`: the
    least and the largest k that closed a block; they differ only while k changes.  `gradients` (by weight),
    `contributors`: the number of gradients and the number of contributors in a block's sum, as means over the blocks.
    `least`: the fewest contributors of a block.  `notes`: the workers' side values (compression.side_values), by rank.
    `plan`: the next iteration's plan.  `encoding`: measurements of this worker's gradient; None if no gradient was
    encoded in this iteration.
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

    @classmethod
    def of_all(cls, iteration: int, mean: Floats, workers: int, plan: Plan) -> Self:
        """Return the aggregate of workers that sum among themselves: every gradient counts once."""
        return cls(
            iteration=iteration,
            mean=mean,
            checksums=np.zeros(0, np.int64),
            k=workers,
            ks=(workers, workers),
            count=workers,
            members=list(range(workers)),
            missed=0,
            gradients=workers,
            contributors=workers,
            least=workers,
            notes={},
            plan=plan,
            encoding=None,
        )

    @property
    def late(self) -> bool:
        """Whether any block was closed without this worker."""
        return self.missed > 0


def held(results: BlockResults) -> tuple[float, float]:
    """Return the numbers of gradients (by weight) and of counted contributions in a sum, as means over the blocks."""
    weight, contributors = (int(results.numbers(name).sum()) for name in ("weight", "count"))
    return weight / WEIGHT_UNIT / len(results), contributors / len(results)


def missed(results: BlockResults, place: int) -> int:
    """Return the number of blocks whose sums lack part 0 of the worker at this place."""
    return int((results.parts_of(place) & 1 == 0).sum())


class Sums:
    """The sums of an iteration, which take results as they arrive; `plan`: the iteration's plan.

    `checksums`, `mean`: as in Aggregate.  For a block whose sum only another worker gets, the mean is undefined and the
    checksum is 0.  `closed`, (blocks,): whether the block's result has been added, or the block was not sent;
    `closed_s`, (blocks,): time.monotonic() of the result, NaN without a result.
    """

    def __init__(self, coding: JobCoding, plan: Plan, average: Average) -> None:
        self.checksums: Integers = np.zeros(coding.layout.blocks, np.int64)
        self.closed = np.ones(coding.layout.blocks, np.bool_)
        self.closed[plan.blocks] = False
        self.closed_s: Floats64 = np.full(coding.layout.blocks, np.nan)
        self._coding, self._gap, self._average = coding, np.ascontiguousarray(plan.gap, np.int64), average
        self._whole = plan.blocks.size == coding.layout.blocks
        self._weights = factors_of(coding.layout.elements)
        self._mean: Floats | None = None
        self._native = None if coding.most is None else self._view(coding.most)

    def into(self, mean: Floats) -> None:
        """Write the mean to this array, unless the mean has an array already."""
        if self._mean is None:
            if not self._whole:
                mean[...] = 0
            self._mean = mean

    def leave(self) -> None:
        """Copy the mean to a new array, and write there from now on."""
        self._mean = self.mean.copy()

    @property
    def mean(self) -> Floats:
        if self._mean is None:
            self.into(np.empty(self._coding.elements, np.float32))
        assert self._mean is not None
        return self._mean

    def add(self, results: BlockResults) -> None:
        """Add new results; one of them may be the summary block's result.

        A result without values belongs to a sum that only another worker gets.
        """
        results = results.below(len(self.closed))
        if self._native is None:
            self._add(results)
        else:
            blocks, table = np.ascontiguousarray(results.blocks), np.ascontiguousarray(results.table)
            places = blocks.ctypes.data, table.ctypes.data, len(blocks), self.mean.ctypes.data
            if (bad := library().sums_take(ctypes.addressof(self._native), *places)) >= 0:
                raise CodecError(_unknown(results[int(bad)], self._coding))

    def reduces(self, reduction: NativeReduction) -> None:
        """Let a reduction make these sums; native code must know the job's codecs."""
        assert self._native is not None
        reduction.sums, reduction.mean = ctypes.addressof(self._native), self.mean.ctypes.data
        reduction.keeps.append(self)

    def _view(self, most: Mapping[int, int]) -> structs.Sums:
        """Return the structure for sums.c."""
        limits = (most.get(code, -1) for code in CODES)
        gap, unit = (self._gap.ctypes.data, WEIGHT_UNIT * UNIT) if self._by_weight else (None, UNIT)
        places = (array.ctypes.data for array in (self._weights, self.checksums, self.closed_s, self.closed))
        elements = self._coding.layout.elements, self._coding.elements
        return structs.Sums(*elements, (ctypes.c_int64 * len(WIDTHS))(*limits), gap, unit, *places)

    @property
    def _by_weight(self) -> bool:
        return self._average == "gradients"

    def _add(self, results: BlockResults) -> None:
        """Add results with codecs that native code does not know."""
        results = results[results.numbers("size") > 0]
        lanes = results.table["lanes"]
        for code in {*lanes.tolist()}:
            alike, codec = results[lanes == code], self._coding.codecs[code]
            scale, addends, factors = alike.numbers("scale")[:, None], alike.addends[:, None], self._factors(alike)
            self.checksums[alike.blocks] = average_packed(
                codec, alike, scale, addends, factors[:, None], weights=self._weights, mean=self.mean
            )
        self.closed_s[results.blocks] = time.monotonic()
        self.closed[results.blocks] = True

    def _factors(self, results: BlockResults) -> Floats64:
        """Return the factors of the results' totals, shape (results,).

        Division by contributors ignores how many gradients a contribution carries.
        """
        if self._by_weight:
            return self._gap[results.blocks] / results.numbers("weight") * (WEIGHT_UNIT * UNIT)
        return UNIT / results.numbers("count")


def _unknown(result: Result, coding: JobCoding) -> str:
    """Return the error message for a result that no worker of this job could have made."""
    allowed = ", ".join(str(int(code)) for code in coding.codecs)
    return (
        f"block {result.id.block} must be summed in {coding.layout.elements} lanes of code {allowed} at a scale of 0 to"
        f" {FRACTION_BITS}, got code {result.lanes} at scale {result.scale} in {len(result.values)} bytes"
    )


def aggregate(
    finished: Finished, coding: JobCoding, *, rank: int, average: Average, sums: Sums | None = None
) -> Aggregate:
    """Divide each block's sum by the number that `average` names; `sums`: the sums of the results, if known."""
    results = finished.results
    if sums is None:
        sums = Sums(coding, finished.plan, average)
        sums.add(results)
    gradients, contributors = held(results)
    ks, counts = results.numbers("k"), results.numbers("count")
    return Aggregate(
        iteration=results.iteration,
        mean=sums.mean,
        checksums=sums.checksums,
        k=int(ks[0]),
        ks=(int(ks.min()), int(ks.max())),
        count=int(counts[0]),
        members=wire.members_of(results.members(0), coding.places),
        missed=missed(results, coding.places[rank]),
        gradients=gradients,
        contributors=contributors,
        least=int(counts.min()),
        notes=finished.notes,
        plan=finished.following,
        encoding=finished.encoding,
    )
