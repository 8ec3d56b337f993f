"""The accounts of a worker's gradients: their weight, and the checksums of their values."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn_common.results.account import Account
from kofn_common.results.memory import Memory
from kofn_common.wire.sizes import PARTS, WEIGHT_UNIT
from kofn_host.arrays import Integers
from kofn_host.compression.ledger_native import checksums
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.compression.residual import Residual
from kofn_host.compression.sent_parts import SentParts


@dataclass(frozen=True, slots=True)
class LedgerTotals:
    """The totals of a run: checksums of each block's values (compression.ledger_native), int64, shape (blocks,)."""

    gradients: Integers
    aggregated: Integers
    pending: Integers
    discarded: Integers

    @property
    def conserved(self) -> bool:
        """Whether all of every gradient was aggregated, is still pending, or was discarded on purpose."""
        return bool(np.array_equal(self.gradients, self.aggregated + self.pending + self.discarded))


class LedgerAccounts:
    """The accounts of the ledger in `storage`; weights are in 1 / WEIGHT_UNIT."""

    def __init__(self, storage: LedgerStorage, residual: Residual, sent: SentParts) -> None:
        self._storage, self._residual, self._sent = storage, residual, sent

    @property
    def waiting(self) -> Integers:
        """The weight of the gradients that are neither aggregated nor discarded, shape (blocks,)."""
        records = self._storage.records
        weight: Integers = records["entered_weight"] - records["aggregated_weight"] - records["discarded_weight"]
        return weight

    def unsent(self, iteration: int) -> Integers:
        """Return the waiting weight that no contribution to this iteration contains, shape (blocks,)."""
        weight = self.waiting
        for part in self._sent.current:
            weight -= self._sent.away(part, iteration) * self._sent.of(part, iteration)["weight"]
        return weight

    def missed(self, sums: int) -> npt.NDArray[np.bool_]:
        """Return whether each block has weight that is in no contribution and has missed `sums` sums, bool (blocks,).

        `sums`: 0, 1 or 2; the weight has missed at least this many sums.  An iteration that does not send a block has
        no sum of the block to miss.
        """
        records = self._storage.records
        found: npt.NDArray[np.bool_] = self.unsent(int(self._storage.begun[0])) > 0
        if sums:
            found &= records["late"] > 0
        if sums > 1:
            found &= records["late"] < records["settled"] >> PARTS
        return found

    @property
    def late_since(self) -> int:
        """The first iteration with a sum that closed without a waiting gradient; 0: no gradient is late."""
        late = [self._storage.records["late"][self.missed(1)]]
        begun = int(self._storage.begun[0])
        for part in self._sent.current:
            sent = self._sent.of(part, begun)
            late.append(sent["late"][self._sent.away(part, begun) & (sent["weight"] > 0) & (sent["late"] > 0)])
        return min([int(iterations.min()) for iterations in late if iterations.size], default=0)

    @property
    def memory(self) -> Memory:
        """An upper bound of the memory in use: contributions take no memory before use.

        The bound includes only part 0.
        """
        storage = self._storage
        books = storage.journal.nbytes + storage.records.nbytes + storage.sent[0].nbytes + storage.shifts.nbytes
        return Memory(residuals=storage.pending.nbytes, ledger=storage.packed[0].nbytes + books)

    def totals(self) -> LedgerTotals:
        gradients, aggregated, discarded = (
            self._storage.records[name].copy() for name in ("gradients", "aggregated", "discarded")
        )
        pending = np.concatenate([checksums(self._residual.values(some)) for some in self._residual.slices])
        return LedgerTotals(gradients, aggregated, pending, discarded)

    def account(self) -> Account:
        """Return the gradients' weight by state; the numbers are consistent in any thread."""
        records = self._storage.records.copy()
        entered, summed, discarded = (
            int(records[name].sum()) for name in ("entered_weight", "aggregated_weight", "discarded_weight")
        )
        gradient = WEIGHT_UNIT * self._residual.blocks
        return Account(
            entered=entered / gradient,
            summed=summed / gradient,
            waiting=(entered - summed - discarded) / gradient,
            discarded=discarded / gradient,
            late_since=self.late_since,
        )
