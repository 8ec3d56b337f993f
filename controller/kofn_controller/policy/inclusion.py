"""Includes a worker that was late too often: the job waits for all workers until that worker has been in a sum."""

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, Measurements


class Inclusion:
    """Includes one worker at a time, after this worker was late `after` times in a row; `after` 0: never."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.rank: int | None = None
        """The worker that is being included; None: there is none."""

    def excluded(self, measurements: Measurements, live: BoolArray, k: int) -> int | None:
        """Return the live worker that was late most often in a row, if it was late `after` times or more and k is below
        the number of live workers; else None."""
        if not self._after or k >= live.sum():
            return None
        late = np.where(live, measurements.late_in_a_row, -1)
        rank = int(late.argmax())
        return rank if late[rank] >= self._after else None

    def due(self, measurements: Measurements, live: BoolArray, k: int) -> bool:
        """Return whether an inclusion must begin or end now."""
        if self.rank is None:
            return self.excluded(measurements, live, k) is not None
        return bool(measurements.late_in_a_row[self.rank] == 0)
