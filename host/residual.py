"""A worker's books: what its gradients were, what of them was counted, and what is left.

`pending` is everything that no result has counted yet: the stash of blocks that came too late, what quantization left
over, and the newest gradient.  Each iteration sends `pending`, so a late block is added to the same block of the next
iteration (source: the slow-node scheduling document, claim "stored data is summed with the same block of the next
iteration").  Everything is integer: conservation, gradients = counted + pending, is exact or broken.

The books may live in a file mapped into memory (host.pages), so that they survive the death of the process at any
instruction.  What was sent is noted before it is sent; a block's counted values are kept twice, and one aligned 64-bit
store says which copy is valid and up to which iteration: a result is counted entirely or not at all, and never twice.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from host.compress import Fixed, FixedPoint
from host.errors import ProtocolError
from host.history import Result
from host.pages import Pages
from host.wire import Values


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
    """The books of worker `rank` in `pages`: blocks are rows."""

    def __init__(self, pages: Pages, rank: int) -> None:
        self._pages, self._rank = pages, rank
        self.sent: Values = pages.sent
        """The lanes of each block as they were sent last, shape (blocks, lanes)."""
        self.sent_scale: npt.NDArray[np.int64] = pages.sent_scale
        """Their scales, shape (blocks,)."""
        self.pending: Fixed = pages.gradients - self._counted()

    @property
    def begun(self) -> int:
        """The latest iteration that this worker has begun, in this process or an earlier one; 0: none."""
        return int(self._pages.marks[0])

    @property
    def entered(self) -> int:
        """The latest iteration whose gradient is in the books."""
        return int(self._pages.marks[1])

    def begin(self, iteration: int) -> None:
        """Note that an iteration has begun."""
        self._pages.marks[0] = iteration

    def add(self, gradient: Fixed, iteration: int) -> None:
        """Enter an iteration's gradient, shape (elements,) with elements <= blocks * lanes."""
        self.pending.reshape(-1)[: gradient.size] += gradient
        self._pages.gradients.reshape(-1)[: gradient.size] += gradient
        self._pages.marks[1] = iteration

    def sending(self, iteration: int, codec: FixedPoint) -> None:
        """Encode and note what this iteration sends: all that is pending, but for what it has sent before a restart."""
        blocks = np.flatnonzero(self._pages.sent_in != iteration)
        if blocks.size == len(self.sent):
            self.sent[:] = codec.encode(self.pending, codec.scale)
        else:
            self.sent[blocks] = codec.encode(self.pending[blocks], codec.scale)
        self.sent_scale[blocks] = codec.scale
        self._pages.sent_in[blocks] = iteration

    def send_again(self, block: int, iteration: int, codec: FixedPoint, scale: int) -> None:
        """Encode a refused block at another scale and note it."""
        self._pages.sent_in[block] = 0
        self.sent[block] = codec.encode(self.pending[block], scale)
        self.sent_scale[block] = scale
        self._pages.sent_in[block] = iteration

    def settle(self, result: Result) -> None:
        """Take note of a result: what it holds of this worker's block is counted; a copy of it changes nothing."""
        block, iteration = result.id.block, result.id.iteration
        settled, valid = divmod(int(self._pages.settled[block]), 2)
        if settled >= iteration:
            return
        if result.has(self._rank):
            counted = self._own(result)
            other = 1 - valid
            self._pages.counted[other, block] = self._pages.counted[valid, block] + counted
            self.pending[block] -= counted
            valid = other
        self._pages.settled[block] = 2 * iteration + valid

    def unsettled(self, iteration: int) -> list[int]:
        """Blocks that were sent in this iteration and whose result is not known."""
        waits = (self._pages.sent_in == iteration) & (self._pages.settled // 2 < iteration)
        return [int(block) for block in np.flatnonzero(waits)]

    def books(self) -> Books:
        """Copies of the totals."""
        gradients, counted = self._pages.gradients.ravel().copy(), self._counted().ravel()
        return Books(gradients, counted, self.pending.ravel().copy())

    def _own(self, result: Result) -> Fixed:
        """What this worker had sent for a result that says it is in it."""
        block, iteration = result.id.block, result.id.iteration
        if self._pages.sent_in[block] != iteration:
            raise ProtocolError(
                f"block {block} of iteration {iteration} has a contribution of worker {self._rank}, which sent none:"
                " is another process running with this rank?"
            )
        return FixedPoint.counted(self.sent[block], int(self.sent_scale[block]))

    def _counted(self) -> Fixed:
        """The valid copies, shape (blocks, lanes)."""
        blocks = np.arange(len(self.sent))
        valid: Fixed = self._pages.counted[self._pages.settled % 2, blocks]
        return valid
