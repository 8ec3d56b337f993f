"""The pending values of a worker's gradients."""

import ctypes
import math
from collections.abc import Iterator

import numpy as np

from kofn_host.arrays import Fixed, Integers
from kofn_host.compression.codec import UNIT
from kofn_host.compression.ledger_native import View, library
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.kernels.sample import sample

EXPANDED = 1 << 20
"""The most values that are copied at once if the ledger does not keep them exactly."""


class Residual:
    """The pending values in `storage`, one row per block, exact or in fewer bits; `view`: the storage's View."""

    def __init__(self, storage: LedgerStorage, view: View) -> None:
        self._storage, self._view = storage, view
        self.blocks, self.elements = storage.pending.shape

    @property
    def exact(self) -> bool:
        """Whether pending values are kept exactly."""
        return self._storage.residual == "exact"

    @property
    def pending(self) -> Fixed:
        """All pending values, (blocks, elements); a copy if they are not kept exactly."""
        return self.values(slice(None))

    def values(self, blocks: Integers | slice | list[int]) -> Fixed:
        """Return the pending values of blocks, (B, elements)."""
        if self.exact:
            exact: Fixed = self._storage.pending[blocks]
            return exact
        chosen = np.ascontiguousarray(np.arange(self.blocks)[blocks], np.int64)
        values = np.empty((chosen.size, self.elements), np.int64)
        library().ledger_pending(ctypes.addressof(self._view), chosen.ctypes.data, chosen.size, values.ctypes.data)
        return values

    @property
    def slices(self) -> Iterator[slice]:
        """Slices that cover all blocks; they are small if values() copies."""
        size = self.blocks if self.exact else max(1, EXPANDED // self.elements)
        return (slice(begin, begin + size) for begin in range(0, self.blocks, size))

    @property
    def sampled(self) -> Fixed:
        """A sample of the pending values, (N,)."""
        if self.exact:
            return sample(self._storage.pending.ravel())
        return self.values(slice(None, None, -(-self.blocks * self.elements // EXPANDED))).ravel()

    @property
    def lost_norm(self) -> float:
        """L2 norm of this process's rounding of residuals to fewer bits, in units of the gradient."""
        return math.sqrt(self._view.lost) * UNIT
