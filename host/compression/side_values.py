"""Side values: a few numbers of each worker for all others, in lanes of the summary block.

Each worker has its own lanes, which the others leave 0, so that the sum lists all members' numbers.
"""

from collections.abc import Sequence

import numpy as np

from kofn.host.arrays import Values
from kofn.host.wire.packet import RANKS, WORD_LANES, members_of

NUMBERS = 3
"""The number of side values per worker; each is 0 to 2**31 - 1."""

WORDS = NUMBERS * RANKS // WORD_LANES

SideValues = tuple[int, ...]
"""A worker's side values, NUMBERS of them."""

NOTHING: SideValues = (0,) * NUMBERS


def lanes(rank: int, note: SideValues) -> Values:
    """Return a worker's lanes, shape (WORDS * 64,)."""
    filled = np.zeros((RANKS, NUMBERS), np.int32)
    filled[rank] = note
    return filled.ravel()


def read(sums: Values, members: int) -> dict[int, SideValues]:
    """Return the side values of a sum's members (a bitmap), by rank."""
    said: Sequence[Sequence[int]] = sums.reshape(RANKS, NUMBERS).tolist()
    return {rank: tuple(said[rank]) for rank in members_of(members)}
