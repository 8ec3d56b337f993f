"""Includes a worker that was late too often: the job waits for all workers until that worker has been in a sum."""

import math

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, Measurements

CHANCE = 0.01
"""The largest share of the iterations in which chance alone may include one of several equal workers."""

LEAST = 6
"""The least number of late iterations in a row that `beyond_chance` returns."""


def beyond_chance(k: int, workers: int) -> int:
    """Return the number of late iterations in a row from which a worker counts as slower than the others.

    If all workers are equal, the probability that a given worker is late is 1 - k / workers in each iteration. The
    number is the least for which at most the share CHANCE of the iterations has a worker that was late so often in a
    row, but at least LEAST.

    >>> beyond_chance(3, 4), beyond_chance(4, 8), beyond_chance(500, 1000)
    (6, 10, 17)
    """
    return max(LEAST, math.ceil(math.log(CHANCE / workers) / math.log(1 - k / workers)))


class Inclusion:
    """Includes one worker at a time, after it was late `after` times in a row; 0: never.

    `after` None: `beyond_chance` times where a worker that is always late starves, else never.
    """

    def __init__(self, after: int | None) -> None:
        self._after = after
        self.rank: int | None = None
        """The worker that is being included; None: there is none."""

    def excluded(self, measurements: Measurements, live: BoolArray, k: int, *, starves: bool) -> int | None:
        """Return the live worker that was late most often in a row, if it was late so often and k is below the number
        of live workers; else None. `starves`: whether a worker that is always late is in no sum."""
        if self._after == 0 or (self._after is None and not starves) or k >= (workers := int(live.sum())):
            return None
        after = beyond_chance(k, workers) if self._after is None else self._after
        late = np.where(live, measurements.late_in_a_row, -1)
        rank = int(late.argmax())
        return rank if late[rank] >= after else None

    def due(self, measurements: Measurements, live: BoolArray, k: int, *, starves: bool) -> bool:
        """Return whether an inclusion must begin or end now."""
        if self.rank is None:
            return self.excluded(measurements, live, k, starves=starves) is not None
        return bool(measurements.late_in_a_row[self.rank] == 0)
