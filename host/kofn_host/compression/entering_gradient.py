"""A gradient that enters the ledger at once, or in pieces while it is computed."""

import numpy as np

from kofn_host.arrays import Floats, Integers
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient
from kofn_host.compression.pieces import Pieces
from kofn_host.compression.reduction_native import NativeReduction
from kofn_host.compression.summary_block import Magnitudes
from kofn_host.kernels.sample import sample


class EnteringGradient:
    """The gradient that enters `ledger`, if any.

    Blocks enter when they are encoded; the remaining blocks enter at the end.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.gradient: Gradient | None = None
        """The gradient; None if the latest one is completely in the ledger."""
        self._pieces: Pieces | None = None  # the gradient's pieces; None: the gradient is complete
        self.sample: Floats = np.zeros(0, np.float32)
        """A sample of the gradient that was entered last."""

    def take(self, gradient: Gradient, pieces: Pieces | None) -> None:
        """Begin to enter another gradient."""
        self.gradient, self._pieces = gradient, pieces

    @property
    def awaits_pieces(self) -> bool:
        """Whether pieces of the gradient are missing."""
        return self.gradient is not None and self._pieces is not None and not self._pieces.whole

    def finish(self) -> None:
        """Enter the remaining blocks that lack no pieces, and drop the gradient."""
        if self.gradient is not None:
            blocks, pieces = np.arange(self._ledger.blocks), self._pieces
            whole = blocks if pieces is None else blocks[pieces.choose(blocks, blocks.size)]
            self._ledger.enter(self.gradient, whole)
        self._drop()

    def look(self) -> Magnitudes:
        """Enter the rest of a gradient that lacks no pieces; return the magnitudes of all pending values."""
        mean, largest = self._ledger.look(self.gradient)
        self._drop()
        return Magnitudes(mean=mean, largest=largest)

    def _drop(self) -> None:
        """Drop the gradient, and keep a sample of it."""
        if self.gradient is not None:
            self.sample = sample(self.gradient.keeps).copy()
        self.gradient = None

    def next_blocks(self, left: Integers, planned: Integers, window: int, most: int) -> tuple[Integers, Integers]:
        """Return the next `most` sendable blocks out of `left`, ascending, and the remainder.

        The returned blocks are within a window of the first block in `left`: later blocks would occupy the room that
        the first block needs.
        """
        if self.gradient is None or self._pieces is None:
            return left[:most], left[most:]
        last = min(int(np.searchsorted(planned, left[0])) + window, planned.size) - 1
        chosen = self._pieces.choose(left[left <= planned[last]], most)
        return left[chosen], np.delete(left, chosen)

    def enters(self, reduction: NativeReduction) -> object:
        """Let a reduction enter the gradient; return the objects that keep it in memory."""
        if self.gradient is None:
            return None
        reduction.gradient = self._ledger.aged(self.gradient)
        if self._pieces is not None:
            reduction.missing, reduction.level = self._pieces.places
        return self.gradient, self._pieces
