"""Waiting for everyone until a worker that was too late too often has been in a sum."""

import numpy as np

from kofn.controller.estimate.measurements import BoolArray, Measurements


class Inclusion:
    """Of one worker at a time; `after`: so many times too late in a row, 0: nobody is ever included."""

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
        """Return whether somebody has to be included, or has been."""
        if self.rank is None:
            return self.excluded(measurements, live, k) is not None
        return measurements.track[self.rank].late_in_a_row == 0
