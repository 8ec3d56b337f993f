"""A worker's books: what its gradients were, what of them was counted, and what is left.

`pending` is everything that no result has counted yet: the stash of blocks that came too late, what quantization left
over, and the newest gradient.  Each iteration sends `pending`, so a late block is added to the same block of the next
iteration (source: the slow-node scheduling document, claim "stored data is summed with the same block of the next
iteration").  Everything is integer: conservation, gradients = counted + pending, is exact or broken.
"""

from dataclasses import dataclass

import numpy as np

from host.compress import Fixed


@dataclass(frozen=True, slots=True)
class Books:
    """Totals over a run, int64 in units of 2**-40, shape (elements,)."""

    gradients: Fixed
    counted: Fixed
    pending: Fixed

    @property
    def conserved(self) -> bool:
        """Whether every element of every gradient was counted or is still pending."""
        return bool(np.array_equal(self.gradients, self.counted + self.pending))


class Residual:
    """`blocks` blocks of `elements_per_block`; a block is a row."""

    def __init__(self, *, blocks: int, elements_per_block: int) -> None:
        shape = (blocks, elements_per_block)
        self.pending: Fixed = np.zeros(shape, np.int64)
        self._gradients: Fixed = np.zeros(shape, np.int64)
        self._counted: Fixed = np.zeros(shape, np.int64)

    def add(self, gradient: Fixed) -> None:
        """Enter a gradient, shape (elements,) with elements <= blocks * elements_per_block."""
        self.pending.reshape(-1)[: gradient.size] += gradient
        self._gradients.reshape(-1)[: gradient.size] += gradient

    def count(self, block: int, counted: Fixed) -> None:
        """A result contains `counted` of this worker's block."""
        self.pending[block] -= counted
        self._counted[block] += counted

    def books(self) -> Books:
        """Copies of the totals."""
        return Books(self._gradients.ravel().copy(), self._counted.ravel().copy(), self.pending.ravel().copy())
