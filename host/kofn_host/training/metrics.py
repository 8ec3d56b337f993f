"""A worker's output: a JSON line for each iteration, a summary at the end, and its ledger's checksums."""

import os
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np
import numpy.typing as npt

from kofn_common.json_text import json_text
from kofn_common.results.memory import Memory
from kofn_host.arrays import Integers
from kofn_host.compression.ledger_accounts import LedgerTotals
from kofn_host.training.reducer import Reducer


class Metrics:
    """Appends JSON lines to `path`, and writes the ledger's checksums to a file of the same name with .npz."""

    def __init__(self, path: Path) -> None:
        self._ledger_path = path.with_suffix(".npz")
        self._file: TextIO = path.open("a", buffering=1)

    def __enter__(self) -> Self:
        """Close the file at the end of the `with` block, also after an error."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, **fields: Any) -> None:
        self._file.write(json_text(fields) + "\n")

    def sync(self) -> None:
        """Bring all lines to the disk."""
        os.fsync(self._file.fileno())

    def sum_up(
        self,
        reducer: Reducer,
        reason: str,
        results: Integers,
        memory: Memory | None = None,
        received: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Write the summary of a training that ended for `reason`, and the ledger; other arguments as in close()."""
        account = reducer.account()
        found = {"reason": reason, "account": account and asdict(account), "memory": memory and asdict(memory)}
        self.write(summary=reducer.statistics() | found)
        self.close(reducer.totals(), results, received)

    def close(
        self, totals: LedgerTotals | None, results: Integers, received: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Close the file; with a ledger, write the checksums that prove conservation, int64, shape (blocks,).

        `results`: the checksums of the sum of all applied results.  `received`, (blocks,): the blocks whose results
        come to this worker; None: all blocks.
        """
        self._file.close()
        if totals is None:
            return
        np.savez(
            self._ledger_path,
            gradients=totals.gradients,
            aggregated=totals.aggregated,
            residual=totals.pending,
            discarded=totals.discarded,
            results=results,
            received=np.ones_like(results) if received is None else received.astype(np.int64),
        )
