"""A record of everything a worker sent and received, for checking: `run.record = true`.

Its lanes are integers, so that a reader can add contributions and compare them with the switch's sums exactly.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_common.wire.packet import MEMBERS_BITS
from kofn_common.wire.sizes import PARTS
from kofn_host.arrays import Values
from kofn_host.compression.job_coding import JobCoding
from kofn_host.kernels.lanes import unpack_sums, width_of
from kofn_host.protocol.results import BlockResults

NUMBERS = {"scales": "scale", "lanes": "lanes", "counts": "count", "weights": "weight"}
"""Arrays of the record, and the field of a result that each holds."""


class Recorder:
    """Collects in memory; `save` writes one .npz.  For I iterations of B blocks of L elements and P parts, it contains:

    iterations (I,); sent (I, P, B, L) int32, 0 where this worker sent nothing; and the results: sums (I, B, L) int32,
    scales, lanes, counts, weights (I, B), members (I, P + R - 1, B) uint64 for R racks, as in RESULT; 0 in omitted
    blocks.
    """

    def __init__(self, coding: JobCoding) -> None:
        self._coding = coding
        self._words = PARTS + coding.places[-1] // MEMBERS_BITS
        self._sent: list[Values] = []
        self._iterations: list[int] = []
        self._sums: list[Values] = []
        self._numbers: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in NUMBERS.values()}
        self._members: list[npt.NDArray[np.uint64]] = []

    def add(self, sent: Values, results: BlockResults) -> None:
        """Add a finished iteration: the sent lanes, shape (P, B, L), 0 where nothing was sent, and its results."""
        self._sent.append(sent)
        self._iterations.append(results.iteration)
        self._sums.append(self._sums_of(results))
        for name, numbers in self._numbers.items():
            numbers.append(self._by_block(results, results.numbers(name)))
        self._members.append(self._by_block(results, results.table["members"][:, : self._words]).T)

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {name: np.stack(self._numbers[field]) for name, field in NUMBERS.items()}
        np.savez_compressed(
            path,
            iterations=np.array(self._iterations),
            sent=np.stack(self._sent),
            sums=np.stack(self._sums),
            members=np.stack(self._members),
            **arrays,
        )

    def _sums_of(self, results: BlockResults) -> Values:
        """Return one iteration's sums, shape (B, L)."""
        elements = self._coding.layout.elements
        sums = np.zeros((self._coding.layout.blocks, elements), np.int32)
        for result in results:
            signed = self._coding.codecs[result.lanes].signed
            sums[result.id.block] = unpack_sums(result.values, width_of(result.lanes), elements, signed=signed)
        return sums

    def _by_block(self, results: BlockResults, of: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return `of`, one row per result, as one row per block, shape (B, ...); 0 in blocks without a result."""
        numbers = np.zeros((self._coding.layout.blocks, *of.shape[1:]), of.dtype)
        numbers[results.blocks] = of
        return numbers
