"""A ledger's state between two iterations, for checkpoints: the pending values and the accounts.

Between the end of an iteration and the begin of the next one no contribution is on its way, so the contributions
themselves are not part of the state.
"""

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kofn_common.wire.sizes import PARTS
from kofn_host.arrays import Arrays, Fixed, Integers, copied, fitting
from kofn_host.compression.ledger_native import View, checksums, library, view_of
from kofn_host.compression.ledger_storage import RECORD, LedgerStorage, Records
from kofn_host.compression.residual import Residual
from kofn_host.errors import CheckpointError


class LedgerState:
    """The state of the ledger in `storage`, which `view` opens.

    Its arrays: "pending" (blocks, elements) and "shifts" (blocks,) as in LedgerStorage, and "records" int64
    (blocks, fields of RECORD).
    """

    def __init__(self, storage: LedgerStorage, view: View) -> None:
        self._storage, self._view = storage, view
        self.copy_every = 0
        """Iterations from one copy to the next; 0: none."""
        self._copies: dict[int, Arrays] = {}
        self._spare: list[Arrays] = []

    def ended(self, first: int, last: int) -> None:
        """Keep a copy if one is due: iterations first..last have ended, and no iteration is under way."""
        for iteration in multiples(self.copy_every, first, last):
            self._copies[iteration] = copied(_arrays(self._storage), self._spare.pop() if self._spare else {})

    def take(self, iteration: int) -> Arrays | None:
        """Return the copy at the end of an iteration, and forget it and earlier copies; None if there is no copy."""
        found = self._copies.pop(iteration, None)
        for other in list(self._copies):  # a list: ended() may add a copy meanwhile
            if other < iteration:
                self._copies.pop(other, None)
        return found

    def give_back(self, taken: Arrays) -> None:
        """Reuse the memory of a copy."""
        self._spare.append(taken)

    def copy(self) -> Arrays:
        """Return a copy of the arrays."""
        return {name: array.copy() for name, array in _arrays(self._storage).items()}

    def restore(self, iteration: int, states: Sequence[Arrays]) -> None:
        """Take over the states of one worker or more after this iteration; CheckpointError if a state does not fit.

        The ledger must have no gradients.  If the process dies meanwhile, the next process finds an empty ledger.
        """
        with self._storage.restoring(iteration):
            for state in states:
                residual, records = self._opened(state)
                for some in residual.slices:
                    self._add(some.start, residual.values(some), records[some])

    @property
    def settled(self) -> int:
        """The latest iteration with a known result; 0: none."""
        return int(self._storage.records["settled"].max(initial=0)) >> PARTS

    def pending(self, state: Arrays) -> tuple[Fixed, Integers]:
        """Return the pending values (blocks, elements) of a copy, and the weight of the gradients in them (blocks,)."""
        residual, records = self._opened(state)
        waiting = records["entered_weight"] - records["aggregated_weight"] - records["discarded_weight"]
        return residual.pending, waiting

    def enter(self, values: Fixed, weights: Integers) -> None:
        """Enter values (blocks, elements) that were pending in another run, as gradients of these weights (blocks,).

        The values' age begins at 0.  The ledger must have no gradients, as for restore().
        """
        records = np.zeros(len(values), RECORD)
        records["gradients"], records["entered_weight"] = checksums(values), weights
        with self._storage.restoring(int(self._storage.begun[0])):
            self._add(0, values, records)

    def _add(self, first: int, values: Fixed, records: Records) -> None:
        """Add values and records to the blocks from `first` on."""
        values, records = np.ascontiguousarray(values), np.ascontiguousarray(records)
        library().ledger_take_over(
            ctypes.addressof(self._view), first, len(values), values.ctypes.data, records.ctypes.data
        )

    def _opened(self, state: Arrays) -> tuple[Residual, Records]:
        """Return a state's pending values and its records; CheckpointError if the state does not fit this job."""
        blocks, elements = self._storage.pending.shape
        other = LedgerStorage.in_memory(blocks=blocks, lanes=elements, width=1, residual=self._storage.residual)
        try:
            for name, array in _arrays(other).items():
                array[:] = fitting(state, name, array)
        except ValueError as error:
            raise CheckpointError(f"a ledger of the checkpoint does not fit this job: {error}") from None
        return Residual(other, view_of(other, {})), other.records


def multiples(of: int, first: int, last: int) -> range:
    """Return the multiples of a number from `first` to `last`; an empty range if the number is 0."""
    return range(-(-first // of) * of, last + 1, of) if of else range(0)


def summed_by_others(results: Integers, states: Iterable[Arrays], like: Arrays) -> Arrays:
    """Return the state of the workers whose ledgers are missing: their gradients in sums, and nothing pending.

    `results`: the checksums of all sums, (blocks,); `states`: the known ledgers; `like`: one of the known ledgers, for
    the shapes.
    """
    rest = results.copy()
    for state in states:
        rest -= _records(state["records"])["aggregated"]
    found = {name: np.zeros_like(array) for name, array in like.items()}
    records = _records(found["records"])
    records["gradients"] = records["aggregated"] = rest
    return found


def _records(numbers: npt.NDArray[np.generic]) -> Records:
    """Return the records in an array of the state, without a copy."""
    return numbers.view(RECORD)[:, 0]


def _arrays(storage: LedgerStorage) -> Arrays:
    """Return the arrays of the state in their places."""
    records = storage.records.view(np.int64).reshape(len(storage.records), -1)
    return {"records": records, "pending": storage.pending, "shifts": storage.shifts}
