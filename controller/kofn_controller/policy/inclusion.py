"""Includes a worker that was late too often: the job waits for all workers until that worker has been in a sum."""

import math

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, Measurements

CHANCE = 0.01
"""The most inclusions an iteration among equal workers that `beyond_chance` permits."""

LEAST = 6
"""The least number of late iterations in a row that `beyond_chance` returns."""


def beyond_chance(k: int, workers: int) -> int:
    """Return how many late iterations in a row show that a worker is slower than the others.

    Among equal workers, each is late with the probability 1 - k / workers. The number is so large that fewer than
    CHANCE of the iterations have a worker that was late so often by chance.

    >>> beyond_chance(3, 4), beyond_chance(4, 8), beyond_chance(500, 1000)
    (6, 10, 17)
    """
    if k >= workers:
        return LEAST
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
        workers, after = int(live.sum()), self._after
        if after is None:
            after = beyond_chance(k, workers) if starves else 0
        if not after or k >= workers:
            return None
        late = np.where(live, measurements.late_in_a_row, -1)
        rank = int(late.argmax())
        return rank if late[rank] >= after else None

    def due(self, measurements: Measurements, live: BoolArray, k: int, *, starves: bool) -> bool:
        """Return whether an inclusion must begin or end now."""
        if self.rank is None:
            return self.excluded(measurements, live, k, starves=starves) is not None
        return bool(measurements.late_in_a_row[self.rank] == 0)
