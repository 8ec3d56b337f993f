"""The reports of many workers at once, as arrays. They hold the fields of a Report that the estimates use."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ranks: TypeAlias = int | NDArray[np.int64]
"""One worker, or several different workers; a function that takes Ranks takes numbers, or arrays of the same length."""

Numbers: TypeAlias = float | NDArray[np.float64]

Flags: TypeAlias = bool | NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """One report of each of m workers; arrays are (m,). Fields as in Report (common/kofn_common/rpc/kofn.proto)."""

    rank: NDArray[np.int64]
    iteration: NDArray[np.int64]
    first_block_s: NDArray[np.float64]
    iteration_s: NDArray[np.float64]
    link_wait_s: NDArray[np.float64] | None = None  # None: nothing new is known
    censored: NDArray[np.bool_]
    late: NDArray[np.bool_]
    now_s: NDArray[np.float64]  # when each report came

    def at(self, rows: NDArray[np.bool_]) -> "Reports":
        """Return some of the reports."""
        waits_s = self.link_wait_s
        return Reports(
            rank=self.rank[rows],
            iteration=self.iteration[rows],
            first_block_s=self.first_block_s[rows],
            iteration_s=self.iteration_s[rows],
            link_wait_s=None if waits_s is None else waits_s[rows],
            censored=self.censored[rows],
            late=self.late[rows],
            now_s=self.now_s[rows],
        )
