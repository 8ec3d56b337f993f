"""A gradient that an agent reduces while it is computed: pieces in, means out, in any order."""

import threading
import time
from collections.abc import Callable

from kofn.host.arrays import Floats, Floats64
from kofn.host.compression.aggregate import Sums
from kofn.host.compression.pieces import Pieces


def nobody(first: int, end: int) -> object:
    """Who is told where no engine is."""


class GradientStream:
    """In blocks of `block_elements`; Agent.all_reduce() takes it from here.  Pieces are copied into `values`."""

    def __init__(self, values: Floats, block_elements: int) -> None:
        self.pieces = Pieces(values, block_elements)
        self._size = block_elements
        self._changed = threading.Condition()
        self._asking = threading.Lock()
        self._await: Callable[[int, int], object] = nobody
        self._awaited: list[tuple[int, int]] = []  # blocks, by each who waits
        self._sums: Sums | None = None
        self._mean: Floats | None = None
        self._error: BaseException | None = None

    def wait(self, begin: int, end: int, timeout_s: float | None = None) -> Floats:
        """The mean of elements begin to end, once every block of these has closed; TimeoutError, or why it ended."""
        self.pieces.check_range(begin, end)
        with self._changed:
            if (mean := self._known(begin, end)) is not None:
                return mean
        blocks = begin // self._size, -(-end // self._size)
        self._ask(lambda: self._awaited.append(blocks))
        try:
            return self._wait(begin, end, timeout_s)
        finally:
            self._ask(lambda: self._awaited.remove(blocks))

    @property
    def closed_s(self) -> Floats64 | None:
        """Since when each block's mean is there, as Sums.closed_s; None: nothing has come."""
        return None if self._sums is None else self._sums.closed_s

    # -- for who reduces it

    def tell(self, to: Callable[[int, int], object]) -> None:
        """Which blocks are waited for is told there from now on, and nowhere else; the same number twice: none."""
        with self._asking:
            self._await = to
        self._ask()

    def follow(self, sums: Sums) -> None:
        """Results have come of the iteration that it belongs to; other sums are those of later ones."""
        with self._changed:
            if self._sums is None or self._sums is sums:
                self._sums = sums
                self._changed.notify_all()

    def finish(self, mean: Floats) -> None:
        """The iteration has ended, with this mean; the first one counts."""
        with self._changed:
            self._mean = mean if self._mean is None else self._mean
            self._changed.notify_all()

    def fail(self, error: BaseException | None) -> None:
        """There will be no more means."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _ask(self, change: Callable[[], object] = lambda: None) -> None:
        """Tell for whom of all who wait: the last one."""
        with self._asking:
            change()
            self._await(*(self._awaited[-1] if self._awaited else (0, 0)))

    def _wait(self, begin: int, end: int, timeout_s: float | None) -> Floats:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while (mean := self._known(begin, end)) is None:
                left_s = None if deadline is None else deadline - time.monotonic()
                if not self._changed.wait(left_s):
                    raise TimeoutError(f"the mean of elements {begin} to {end} is not there after {timeout_s:g} s")
        return mean

    def _known(self, begin: int, end: int) -> Floats | None:
        """None where it is not there yet."""
        if self._mean is not None:
            return self._mean[begin:end]
        if self._sums is not None and self._sums.closed[begin // self._size : (end - 1) // self._size + 1].all():
            return self._sums.mean[begin:end]
        if self._error is not None:
            raise self._error
        return None
