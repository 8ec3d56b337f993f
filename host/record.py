"""Everything a worker sent and received, kept for checking: `run.record = true`.

Lanes as integers, so that whoever reads it can add up contributions and compare them with the switch's sums exactly.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from host.coding import Coding
from host.history import Result
from host.lanes import unpack, width_of
from host.wire import MEMBERS_BYTES, PARTS, Values


class Recorder:
    """Collects in memory; `save` writes one .npz with, for I iterations of B blocks of L elements:

    iterations (I,), computed (I,) bool: whether this worker sent anything; sent (I, PARTS, B, L) int32, 0 where not;
    sums (I, B, L) int32, scales, lanes, counts, weights (I, B), members (I, PARTS, B) uint64, a bit for each rank: the
    results.  All are 0 in blocks that an iteration left out.
    """

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        self._computed: list[bool] = []
        self._sent: list[Values] = []
        self._results: list[Sequence[Result]] = []

    def add(self, sent: Values | None, results: Sequence[Result]) -> None:
        """One finished iteration: what was sent, shape (PARTS, B, L), None for nothing, and its results."""
        filled = np.zeros((PARTS, self._coding.shape.blocks, self._coding.shape.elements), np.int32)
        if sent is not None:
            blocks = [result.id.block for result in results]
            filled[:, blocks] = sent[:, blocks]
        self._computed.append(sent is not None)
        self._sent.append(filled)
        self._results.append(results)

    def save(self, path: Path) -> None:
        """Write everything."""
        np.savez_compressed(
            path,
            iterations=np.array([results[0].id.iteration for results in self._results]),
            computed=np.array(self._computed),
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
        sums = np.zeros((self._coding.shape.blocks, self._coding.shape.elements), np.int32)
        for result in results:
            signed = self._coding.codecs[result.lanes].signed
            sums[result.id.block] = unpack(result.values, width_of(result.lanes), signed=signed)
        return sums

    def _numbers(self, name: str) -> npt.NDArray[np.integer]:
        """A field of all results, shape (I, B)."""
        numbers = np.zeros((len(self._results), self._coding.shape.blocks), np.int64)
        for iteration, results in enumerate(self._results):
            for result in results:
                numbers[iteration, result.id.block] = getattr(result, name)
        return numbers

    def _members(self) -> npt.NDArray[np.uint64]:
        """Of all results, shape (I, PARTS, B)."""
        members = np.zeros((len(self._results), PARTS, self._coding.shape.blocks), np.uint64)
        for iteration, results in enumerate(self._results):
            for result in results:
                members[iteration, :, result.id.block] = np.frombuffer(
                    result.members.to_bytes(MEMBERS_BYTES, "little"), "<u8"
                )
        return members
