"""The inclusion of a worker that was too late too often: all are waited for until it has been in a sum."""

import numpy as np

from kofn.controller.estimate.measurements import BoolArray, Measurements


class Inclusion:
    """Includes one worker at a time, once it was too late `after` times in a row; 0: none, ever."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.rank: int | None = None
        """The worker that all are waited for to include; None: there is none."""

    def excluded(self, measurements: Measurements, live: BoolArray, k: int) -> int | None:
        """Return the live worker that was too late most often in a row, where that is too often and k is not all."""
        if not self._after or k >= live.sum():
            return None
        rows = {int(rank): measurements.track[rank].late_in_a_row for rank in np.flatnonzero(live)}
        rank = max(rows, key=lambda rank: rows[rank])
        return rank if rows[rank] >= self._after else None

    def due(self, measurements: Measurements, live: BoolArray, k: int) -> bool:
        """Return whether a worker has to be included, or the one that is included has been in a sum."""
        if self.rank is None:
            return self.excluded(measurements, live, k) is not None
        return measurements.track[self.rank].late_in_a_row == 0
