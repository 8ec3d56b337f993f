"""Everything a worker sent and received, kept for checking: `run.record = true`.

Lanes as integers, so that whoever reads it can add up contributions and compare them with the switch's sums exactly.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Values
from kofn.host.compression.job_coding import JobCoding
from kofn.host.kernels.lanes import unpack, width_of
from kofn.host.protocol.history import Result
from kofn.host.wire.packet import PARTS, RANKS


class Recorder:
    """Collects in memory; `save` writes one .npz with, for I iterations of B blocks of L elements and P parts:

    iterations (I,); sent (I, P, B, L) int32: what this worker sent, 0 where it sent nothing; and the results: sums
    (I, B, L) int32, scales, lanes, counts, weights (I, B), members (I, P, B) uint64, 0 in blocks that were left out.
    """

    def __init__(self, coding: JobCoding) -> None:
        self._coding = coding
        self._sent: list[Values] = []
        self._results: list[Sequence[Result]] = []

    def add(self, sent: Values, results: Sequence[Result]) -> None:
        """One finished iteration: what was sent, shape (P, B, L), 0 where nothing was, and its results."""
        self._sent.append(sent)
        self._results.append(results)

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path,
            iterations=np.array([results[0].id.iteration for results in self._results]),
            sent=np.stack(self._sent),
            sums=np.stack([self._sums(results) for results in self._results]),
            scales=self._numbers("scale"),
            lanes=self._numbers("lanes"),
            counts=self._numbers("count"),
            weights=self._numbers("weight"),
            members=self._members(),
        )

    def _sums(self, results: Sequence[Result]) -> Values:
        """Of one iteration, shape (B, L)."""
        sums = np.zeros((self._coding.layout.blocks, self._coding.layout.elements), np.int32)
        for result in results:
            signed = self._coding.codecs[result.lanes].signed
            sums[result.id.block] = unpack(result.values, width_of(result.lanes), signed=signed)
        return sums

    def _numbers(self, name: str) -> npt.NDArray[np.int64]:
        """A field of all results, shape (I, B)."""
        numbers = np.zeros((len(self._results), self._coding.layout.blocks), np.int64)
        for iteration, results in enumerate(self._results):
            for result in results:
                numbers[iteration, result.id.block] = getattr(result, name)
        return numbers

    def _members(self) -> npt.NDArray[np.uint64]:
        """The bitmaps of all results, part by part, shape (I, P, B)."""
        members = np.zeros((len(self._results), PARTS, self._coding.layout.blocks), np.uint64)
        for iteration, results in enumerate(self._results):
            for result in results:
                for part in range(PARTS):
                    members[iteration, part, result.id.block] = result.members >> part * RANKS & (1 << RANKS) - 1
        return members
