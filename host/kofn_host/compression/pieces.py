"""The pieces of a gradient that arrive while it is computed, and the order in which its blocks leave."""

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from numbers import Integral

import numpy as np

from kofn_host.arrays import Floats, Integers
from kofn_host.compression.codec import check
from kofn_host.errors import GradientError

SHOWN = 4
"""The most ranges that an error lists."""


class Pieces:
    """The pieces of a gradient `values`, float32 (elements,), in blocks of `block_elements`; any thread may put them.

    `changed` is called after each piece, in the thread that has put it.
    """

    def __init__(self, values: Floats, block_elements: int) -> None:
        self.values = values
        self.changed: Callable[[], object] = lambda: None
        self.put_s = time.monotonic()
        """time.monotonic() of the latest piece."""
        self._size = block_elements
        self._lock = threading.Lock()
        self._there: list[tuple[int, int]] = []  # ascending ranges that do not touch
        starts = np.arange(0, values.size, block_elements)
        self._missing = np.minimum(block_elements, values.size - starts)  # missing elements, by block
        self.level: Integers = np.zeros(starts.size, np.int64)
        """Each block's level: complete blocks of a higher level leave first, blocks of one level in ascending order."""

    def put(self, begin: int, values: Floats) -> None:
        """Copy elements of any shape to `begin`.

        GradientError if an element is not float32, not finite, or was put before, or if `begin` is not an integer.
        """
        _check_whole(begin=begin)
        if not isinstance(values, np.ndarray) or values.dtype != np.float32:
            found = f"of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
            raise GradientError(f"a piece of a gradient must be a NumPy array of float32, got {found}")
        values, end = np.ascontiguousarray(values).reshape(-1), begin + values.size
        self.check_range(begin, end)
        check(values, begin)
        with self._lock:
            self._join(begin, end)
        self.values[begin:end] = values
        with self._lock:
            self.put_s = time.monotonic()
            first, last = begin // self._size, (end - 1) // self._size + 1
            edges = np.clip(np.arange(first, last + 1) * self._size, begin, end)
            self._missing[first:last] -= np.diff(edges)
        self.changed()

    def prioritise(self, begin: int, end: int, level: int) -> None:
        """Set the level of these elements' blocks, initially 0; unsent blocks of a higher level leave first."""
        _check_whole(level=level)
        self.check_range(begin, end)
        self.level[begin // self._size : (end - 1) // self._size + 1] = level

    @property
    def whole(self) -> bool:
        """Whether every piece was put."""
        return not self._missing.any()

    @property
    def places(self) -> tuple[int, int]:
        """The addresses of each block's number of missing elements and of its level: int64 (blocks,) each."""
        return self._missing.ctypes.data, self.level.ctypes.data

    @property
    def described(self) -> str:
        """A description of the first missing elements."""
        with self._lock:
            edges = [0, *(edge for there in self._there for edge in there), self.values.size]
        missing = [f"{begin} to {end}" for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
        return f"elements {', '.join(missing[:SHOWN])}{', ...' if len(missing) > SHOWN else ''} are missing"

    def awaited(self, limit_s: float) -> str:
        """Return the error message if no piece was put for `limit_s`."""
        return f"no piece was put in {limit_s:g} s: {self.described}"

    def choose(self, blocks: Integers, most: int) -> Integers:
        """Return the places in `blocks`, ascending, of up to `most` complete blocks that leave next by their level."""
        whole = np.flatnonzero(self._missing[blocks] == 0)
        first = whole[np.argsort(-self.level[blocks[whole]], kind="stable")[:most]]
        return np.sort(first)

    def check_range(self, begin: int, end: int) -> None:
        _check_whole(begin=begin, end=end)
        if not 0 <= begin < end <= self.values.size:
            raise GradientError(f"a piece must have 0 <= begin < end <= {self.values.size}, got {begin} to {end}")

    def _join(self, begin: int, end: int) -> None:
        """Add a range to the complete ranges."""
        at = bisect_left(self._there, (begin, end))
        touching = [there for there in self._there[max(0, at - 1) : at + 1] if there[0] <= end and begin <= there[1]]
        if any(first < end and begin < last for first, last in touching):
            raise GradientError(f"each element must be put once: some of {begin} to {end} were put before")
        for there in touching:
            self._there.remove(there)
        edges = [begin, end, *(edge for there in touching for edge in there)]
        insort(self._there, (min(edges), max(edges)))


def _check_whole(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool) or not -(2**63) <= number < 2**63:
            raise GradientError(f"{name} must be a whole number of 64 bits, got {number!r}")
