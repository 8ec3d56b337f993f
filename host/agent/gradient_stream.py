"""A gradient that an agent reduces while it is computed: pieces in, means out, in any order."""

import threading
import time

from kofn.host.arrays import Floats
from kofn.host.compression.aggregate import Sums
from kofn.host.compression.pieces import Pieces


class GradientStream:
    """In blocks of `block_elements`; Agent.all_reduce() takes it from here.  Pieces are copied into `values`."""

    def __init__(self, values: Floats, block_elements: int) -> None:
        self.pieces = Pieces(values, block_elements)
        self._size = block_elements
        self._changed = threading.Condition()
        self._sums: Sums | None = None
        self._mean: Floats | None = None
        self._error: BaseException | None = None

    def wait(self, begin: int, end: int, timeout_s: float | None = None) -> Floats:
        """The mean of elements begin to end, once every block of these has closed; TimeoutError, or why it ended."""
        self.pieces.check_range(begin, end)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while (mean := self._known(begin, end)) is None:
                left_s = None if deadline is None else deadline - time.monotonic()
                if not self._changed.wait(left_s):
                    raise TimeoutError(f"the mean of elements {begin} to {end} is not there after {timeout_s:g} s")
        return mean

    # -- for who reduces it

    def follow(self, sums: Sums) -> None:
        """Results have come of the iteration that it belongs to; other sums are those of later ones."""
        with self._changed:
            if self._sums is None or self._sums is sums:
                self._sums = sums
                self._changed.notify_all()

    def finish(self, mean: Floats) -> None:
        """The iteration has ended, with this mean."""
        with self._changed:
            self._mean = mean
            self._changed.notify_all()

    def fail(self, error: BaseException | None) -> None:
        """There will be no more means."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _known(self, begin: int, end: int) -> Floats | None:
        """None where it is not there yet."""
        if self._mean is not None:
            return self._mean[begin:end]
        if self._sums is not None and self._sums.closed[begin // self._size : (end - 1) // self._size + 1].all():
            return self._sums.mean[begin:end]
        if self._error is not None:
            raise self._error
        return None
