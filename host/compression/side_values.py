"""What each worker says to all beside its gradient: a few numbers, in lanes of its own of the summary block.

All others leave these lanes 0, so that the sum is a list of what everyone in it says, and nobody has to ask.
"""

from collections.abc import Sequence

import numpy as np

from kofn.host.arrays import Values
from kofn.host.wire.packet import RANKS, WORD_LANES, members_of

NUMBERS = 3
"""Of each worker, 0 to 2**31 - 1."""

WORDS = NUMBERS * RANKS // WORD_LANES

SideValues = tuple[int, ...]
"""Of NUMBERS numbers."""

NOTHING: SideValues = (0,) * NUMBERS


def lanes(rank: int, note: SideValues) -> Values:
    """A worker's own, shape (WORDS * 64,)."""
    filled = np.zeros((RANKS, NUMBERS), np.int32)
    filled[rank] = note
    return filled.ravel()


def read(sums: Values, members: int) -> dict[int, SideValues]:
    """What the members of a sum (a bitmap) say, by rank."""
    said: Sequence[Sequence[int]] = sums.reshape(RANKS, NUMBERS).tolist()
    return {rank: tuple(said[rank]) for rank in members_of(members)}
