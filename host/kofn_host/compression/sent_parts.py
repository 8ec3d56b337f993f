"""The parts that a worker has sent in the last two iterations, and which of them are on their way."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kofn_common.wire.sizes import PARTS
from kofn_host.arrays import Fixed, Integers, Values
from kofn_host.compression.codec import Codec
from kofn_host.compression.ledger_storage import GENERATIONS, LedgerStorage, Records
from kofn_host.compression.residual import Residual
from kofn_host.kernels.kernel import rows_of
from kofn_host.kernels.lanes import unpack, width_of


class SentParts:
    """The contributions in `storage`, as on the wire; `codecs` decode them."""

    def __init__(self, storage: LedgerStorage, codecs: Mapping[int, Codec], residual: Residual) -> None:
        self._storage, self._codecs, self._residual = storage, codecs, residual
        self.current: set[int]
        """The parts used in the current iteration, also by an earlier process."""

    def begin(self, iteration: int, *, begun: int) -> None:
        """Make this the current iteration; of iterations after `begun` nothing was sent yet."""
        parts = range(PARTS) if iteration <= begun else ()
        self.current = {part for part in parts if (self.of(part, iteration)["iteration"] == iteration).any()}

    @property
    def free(self) -> int | None:
        """The first part from 1 on that is unused in the current iteration; None: all are used."""
        return next((part for part in range(1, PARTS) if part not in self.current), None)

    def of(self, part: int, iteration: int) -> Records:
        """Return the blocks' contributions as this part; a contribution with another `iteration` is older."""
        found: Records = self._storage.sent[part, iteration % GENERATIONS]
        return found

    def away(self, part: int, iteration: int, blocks: Integers | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Return whether this part of each block is on its way: sent in this iteration, and its result is unknown."""
        away: npt.NDArray[np.bool_] = self.of(part, iteration)["iteration"][blocks] == iteration
        away &= self._storage.records["settled"][blocks] >> PARTS < iteration
        return away

    def decoded(self, part: int, blocks: Integers, iteration: int) -> Fixed:
        """Return the decoded values of contributions, shape (blocks, elements)."""
        values, sent = np.empty((blocks.size, self._residual.elements), np.int64), self.of(part, iteration)[blocks]
        for code in np.unique(sent["lanes"]).tolist():
            alike = sent["lanes"] == code
            lanes = self.lanes(part, blocks[alike], iteration, code)
            values[alike] = self._codecs[code].decode(lanes, sent["scale"][alike, None].astype(np.int64), 1)
        return values

    def lanes(self, part: int, blocks: Integers, iteration: int, code: int) -> Values:
        """Return the lanes of contributions in lanes of this code, shape (blocks, elements)."""
        width, elements = width_of(code), self._residual.elements
        rows = self.of(part, iteration)["row"][blocks]
        packed = self._storage.packed[part, rows, blocks, : elements * width // 8]
        return unpack(packed.tobytes(), width, signed=self._codecs[code].signed).reshape(blocks.size, elements)

    def left_for(self, part: int, blocks: Integers, iteration: int) -> Fixed:
        """Return the pending values of blocks, without the values that are on their way as other parts."""
        values = self._residual.values(rows_of(blocks.tolist()))
        for other in self.current:
            if other != part and (away := self.away(other, iteration, blocks)).any():
                values = values.copy()
                values[away] -= self.decoded(other, blocks[away], iteration)
        return values

    def together(self, iteration: int, blocks: Integers, parts: Integers) -> Fixed:
        """Return the sum of these parts of blocks, (blocks, elements)."""
        values, known = np.zeros((blocks.size, self._residual.elements), np.int64), blocks < self._residual.blocks
        for part in range(PARTS):
            places = np.flatnonzero(known & (parts >> part & 1 == 1))
            sent = self.of(part, iteration)["iteration"][blocks[places]] == iteration
            values[places[sent]] += self.decoded(part, blocks[places[sent]], iteration)
        return values

    def whole(self, iteration: int) -> Values:
        """Return the lanes that were sent in an iteration, shape (PARTS, blocks, elements), 0 if not sent."""
        found = np.zeros((PARTS, self._residual.blocks, self._residual.elements), np.int32)
        for part in range(PARTS):
            sent = self.of(part, iteration)
            for code in self._codecs:
                blocks = np.flatnonzero((sent["iteration"] == iteration) & (sent["lanes"] == code))
                found[part, blocks] = self.lanes(part, blocks, iteration, code)
        return found

    def unsettled(self, iteration: int) -> list[int]:
        """Return the blocks that were sent in this iteration and whose result is unknown."""
        away = [self.away(part, iteration) for part in range(PARTS)]
        found: list[int] = np.flatnonzero(np.any(away, axis=0)).tolist()
        return found
