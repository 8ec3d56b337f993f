"""A worker's own summary block: the magnitudes, the worker's wish, and the side values."""

import numpy as np

from kofn_common.wire.packet import Lanes
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.compression import side_values
from kofn_host.compression import summary_block as summary
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.side_values import NOTHING, SideValues
from kofn_host.compression.summary_block import Magnitudes, SummaryBlock
from kofn_host.kernels.lanes import pack, unpack
from kofn_host.protocol.instructions import Packed
from kofn_host.protocol.results import Result


class OwnSummary:
    """The summary block of worker `rank` in each iteration, if the job's coding has one."""

    def __init__(self, coding: JobCoding, rank: int) -> None:
        self.note = NOTHING
        """This worker's side values in the next encoded iteration, if the job's coding has notes."""
        self.magnitudes: Magnitudes | None = None
        """The magnitudes of all pending values, before anything is sent."""
        self._coding, self._rank = coding, rank
        self._packed: dict[int, bytes] = {}  # by part

    def begin(self) -> None:
        """Forget the previous iteration's packed values."""
        self._packed.clear()

    def pack(self, wish: float, part: int = 0) -> None:
        """Pack the newest wish, the magnitudes, and, in part 0 only, the note."""
        lanes = []
        if self._coding.summarised:
            assert self.magnitudes is not None
            lanes.append(summary.lanes(wish, self.magnitudes))
        if self._coding.notes:
            lanes.append(side_values.lanes(self._rank, NOTHING if part else self.note, len(self._coding.places)))
        self._packed[part] = pack(np.concatenate(lanes), 32)

    def packed(self, part: int) -> Packed:
        """Return the summary block as this part of the contribution."""
        return Packed(self._packed[part], 0, Lanes.BITS_32, WEIGHT_UNIT)

    def read(self, result: Result) -> tuple[SummaryBlock | None, dict[int, SideValues]]:
        """Return the mean wish and the mean magnitudes of a sum's members, and the members' notes by rank."""
        sums, notes = unpack(result.values, 32), dict[int, SideValues]()
        if self._coding.notes:
            notes = side_values.read(sums, result.members, self._coding.places)
        if not self._coding.summarised:
            return None, notes
        return summary.read(sums, result.count, self._coding.layout.blocks), notes
