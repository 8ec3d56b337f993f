"""Everything a worker sent and received, kept for checking: `run.record = true`.

Lanes as integers, so that whoever reads it can add up contributions and compare them with the switch's sums exactly.
"""

from pathlib import Path

import numpy as np

from host.history import Result
from host.lanes import unpack, width_of
from host.wire import Values


class Recorder:
    """Collects in memory; `save` writes one .npz with, for I iterations of B blocks of L lanes:

    iterations (I,), computed (I,) bool: whether this worker sent anything; sent (I, B, L) int32, 0 where not;
    sums (I, B, L) int32, scales, counts, gradients (I, B), members (I, B) uint64: the results.
    """

    def __init__(self) -> None:
        self._sent: list[Values | None] = []
        self._results: list[list[Result]] = []

    def add(self, sent: Values | None, results: list[Result]) -> None:
        """One finished iteration: what was sent, shape (B, L), None for nothing, and its B results."""
        self._sent.append(None if sent is None else sent.copy())
        self._results.append(results)

    def save(self, path: Path) -> None:
        """Write everything."""
        sums = np.stack([[_lanes(result) for result in results] for results in self._results])
        blank = np.zeros(sums.shape[1:], np.int32)
        np.savez_compressed(
            path,
            iterations=np.array([results[0].id.iteration for results in self._results]),
            computed=np.array([sent is not None for sent in self._sent]),
            sent=np.stack([blank if sent is None else sent for sent in self._sent]),
            sums=sums,
            scales=np.array([[result.scale for result in results] for results in self._results]),
            counts=np.array([[result.count for result in results] for results in self._results]),
            gradients=np.array([[result.gradients for result in results] for results in self._results]),
            members=np.array([[result.members for result in results] for results in self._results], np.uint64),
        )


def _lanes(result: Result) -> Values:
    """A result's sums."""
    return unpack(result.values, width_of(result.lanes))
