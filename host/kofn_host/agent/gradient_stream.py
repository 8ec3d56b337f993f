"""A gradient that is reduced while it is computed: pieces in, means out, in any order."""

import threading
import time
from collections.abc import Callable

from kofn_host.arrays import Floats, Floats64
from kofn_host.compression.aggregate import Sums
from kofn_host.compression.pieces import Pieces


def ignore_awaited(first: int, end: int) -> object:
    """Do nothing about the awaited blocks: there is no engine."""


class GradientStream:
    """A gradient in blocks of `block_elements`, for Agent.all_reduce().  Pieces are copied into `values`."""

    def __init__(self, values: Floats, block_elements: int) -> None:
        self.pieces = Pieces(values, block_elements)
        self._size = block_elements
        self._changed = threading.Condition()
        self._asking = threading.Lock()
        self._await: Callable[[int, int], object] = ignore_awaited
        self._awaited: list[tuple[int, int]] = []  # one range of blocks per waiting thread
        self._sums: Sums | None = None
        self._mean: Floats | None = None
        self._error: BaseException | None = None

    def wait(self, begin: int, end: int, timeout_s: float | None = None) -> Floats:
        """Wait until all blocks of elements begin to end have closed; return their mean.

        TimeoutError after `timeout_s`; the error of fail() if the stream ended with one.
        """
        self.pieces.check_range(begin, end)
        with self._changed:
            if (mean := self._known(begin, end)) is not None:
                return mean
        blocks = begin // self._size, -(-end // self._size)
        self._report_awaited(lambda: self._awaited.append(blocks))
        try:
            return self._wait(begin, end, timeout_s)
        finally:
            self._report_awaited(lambda: self._awaited.remove(blocks))

    @property
    def closed_s(self) -> Floats64 | None:
        """When each block's mean was complete, as Sums.closed_s; None before the first result."""
        return None if self._sums is None else self._sums.closed_s

    # -- for the reducer

    def tell(self, to: Callable[[int, int], object]) -> None:
        """Call `to` with the awaited range of blocks from now on; the range is empty if no block is awaited."""
        with self._asking:
            self._await = to
        self._report_awaited()

    def follow(self, sums: Sums) -> None:
        """Handle new results in `sums`, unless these are the sums of a later iteration."""
        with self._changed:
            if self._sums is None or self._sums is sums:
                self._sums = sums
                self._changed.notify_all()

    def finish(self, mean: Floats) -> None:
        """End the iteration with this mean; later calls are ignored."""
        with self._changed:
            self._mean = mean if self._mean is None else self._mean
            self._changed.notify_all()

    def fail(self, error: BaseException | None) -> None:
        """Raise this error in all waiting threads: there will be no more means."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _report_awaited(self, change: Callable[[], object] = lambda: None) -> None:
        """Report the range of the thread that began to wait last."""
        with self._asking:
            change()
            self._await(*(self._awaited[-1] if self._awaited else (0, 0)))

    def _wait(self, begin: int, end: int, timeout_s: float | None) -> Floats:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while (mean := self._known(begin, end)) is None:
                left_s = None if deadline is None else deadline - time.monotonic()
                if not self._changed.wait(left_s):
                    raise TimeoutError(f"the mean of elements {begin} to {end} is incomplete after {timeout_s:g} s")
        return mean

    def _known(self, begin: int, end: int) -> Floats | None:
        """Return the mean of these elements; None before it is complete."""
        if self._mean is not None:
            return self._mean[begin:end]
        if self._sums is not None and self._sums.closed[begin // self._size : (end - 1) // self._size + 1].all():
            return self._sums.mean[begin:end]
        if self._error is not None:
            raise self._error
        return None
