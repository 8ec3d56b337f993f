"""What a worker tells all others beside its gradient, in the summary block: magnitudes, its wish, and a note."""

import numpy as np

from kofn.host.compression import side_values
from kofn.host.compression import summary_block as summary
from kofn.host.compression.codec import statistics
from kofn.host.compression.job_coding import JobCoding
from kofn.host.compression.residual import Residual
from kofn.host.compression.side_values import NOTHING, SideValues
from kofn.host.compression.summary_block import Magnitudes, SummaryBlock
from kofn.host.kernels.lanes import pack, unpack
from kofn.host.protocol.instructions import Packed
from kofn.host.protocol.results import Result
from kofn.host.wire.packet import WEIGHT_UNIT, WORD_LANES, Lanes


class OwnSummary:
    """The summary block of worker `rank`, in one iteration after another, where the job's coding has one."""

    def __init__(self, coding: JobCoding, rank: int) -> None:
        self.note = NOTHING
        """What this worker says in the iteration that is encoded next, where the job's coding has notes."""
        self.magnitudes: Magnitudes | None = None
        """Of all that is pending, before anything is sent."""
        self._coding, self._rank = coding, rank
        self._packed: dict[int, bytes] = {}  # by part

    def begin(self) -> None:
        """Forget what was packed in the iteration before."""
        self._packed.clear()

    def look(self, residual: Residual) -> None:
        """Find the magnitudes."""
        found = [statistics(residual.values(some)) for some in residual.slices]
        mean, largest = (np.concatenate(each) for each in zip(*found, strict=True))
        self.magnitudes = Magnitudes(mean=mean, largest=largest)

    def pack(self, wish: float, part: int = 0) -> None:
        """Pack the newest wish, the magnitudes, and the note, which only part 0 has."""
        lanes = []
        if self._coding.summarised:
            assert self.magnitudes is not None
            lanes.append(summary.lanes(wish, self.magnitudes))
        if self._coding.notes:
            lanes.append(side_values.lanes(self._rank, NOTHING if part else self.note))
        self._packed[part] = pack(np.concatenate(lanes), 32)

    def packed(self, part: int) -> Packed:
        """Return it as a part of the worker's contribution."""
        return Packed(self._packed[part], 0, Lanes.BITS_32, WEIGHT_UNIT)

    def read(self, result: Result) -> tuple[SummaryBlock | None, dict[int, SideValues]]:
        """Return what the workers in a sum say: their mean wish and magnitudes, and each one's note by rank."""
        sums, notes = unpack(result.values, 32), dict[int, SideValues]()
        if self._coding.notes:
            notes = side_values.read(sums[-side_values.WORDS * WORD_LANES :], result.members)
        if not self._coding.summarised:
            return None, notes
        return summary.read(sums, result.count, self._coding.layout.blocks), notes
