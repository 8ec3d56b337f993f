"""Side values: a few numbers of each worker for all others, in lanes of the summary block.

Workers use separate lanes, and leave each other's lanes 0.  So the sum lists all members' numbers.
"""

from collections.abc import Sequence

import numpy as np

from kofn_common.wire.packet import WORD_LANES, members_of
from kofn_common.wire.sizes import RACK_WORKERS_MAX
from kofn_host.arrays import Values

NUMBERS = 3
"""The number of side values per worker; each is 0 to 2**31 - 1."""

WORDS = NUMBERS * RACK_WORKERS_MAX // WORD_LANES
"""256-byte words of a rack's side values."""

SideValues = tuple[int, ...]
"""The NUMBERS side values of a worker."""

NOTHING: SideValues = (0,) * NUMBERS


def words(workers: int) -> int:
    """Return the number of 256-byte words for `workers` workers: WORDS for each 64 workers."""
    return WORDS * -(-workers // RACK_WORKERS_MAX)


def lanes(rank: int, note: SideValues, workers: int) -> Values:
    """Return a worker's lanes, shape (words(workers) * 64,)."""
    filled = np.zeros((words(workers) * WORD_LANES // NUMBERS, NUMBERS), np.int32)
    filled[rank] = note
    return filled.ravel()


def read(sums: Values, members: int, places: Sequence[int]) -> dict[int, SideValues]:
    """Return the side values of a sum's members (a bitmap), by rank, given all workers' places."""
    said: Sequence[Sequence[int]] = sums[-words(len(places)) * WORD_LANES :].reshape(-1, NUMBERS).tolist()
    return {rank: tuple(said[rank]) for rank in members_of(members, places)}
