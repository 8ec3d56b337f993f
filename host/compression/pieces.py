"""Which pieces of a gradient are there while the rest is still computed, and which blocks leave first."""

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from numbers import Integral

import numpy as np

from kofn.host.arrays import Floats, Integers
from kofn.host.compression.codec import check
from kofn.host.errors import GradientError

SHOWN = 4
"""Ranges that an error lists."""


class Pieces:
    """Of a gradient `values`, float32 (elements,), in blocks of so many elements; any thread may put a piece.

    `changed` is called after each piece, by the thread that has put it.
    """

    def __init__(self, values: Floats, block_elements: int) -> None:
        self.values = values
        self.changed: Callable[[], object] = lambda: None
        self.put_s = time.monotonic()
        """When the latest one was put."""
        self._size = block_elements
        self._lock = threading.Lock()
        self._there: list[tuple[int, int]] = []  # ascending ranges, apart from each other
        starts = np.arange(0, values.size, block_elements)
        self._missing = np.minimum(block_elements, values.size - starts)  # elements, by block
        self.level: Integers = np.zeros(starts.size, np.int64)
        """Of each block: those of a higher one leave first, those of one by their numbers, as far as they are there."""

    def put(self, begin: int, values: Floats) -> None:
        """Copy elements from `begin` on, of any shape; GradientError where they are no float32, not finite, or put
        before, or `begin` is no whole number.
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
        """Of blocks that have not left, those of a higher level leave first; all begin at level 0."""
        _check_whole(level=level)
        self.check_range(begin, end)
        self.level[begin // self._size : (end - 1) // self._size + 1] = level

    @property
    def whole(self) -> bool:
        """Whether every piece was put."""
        return not self._missing.any()

    @property
    def places(self) -> tuple[int, int]:
        """Where it stands how many elements each block misses, and its level: int64 (blocks,) each."""
        return self._missing.ctypes.data, self.level.ctypes.data

    @property
    def described(self) -> str:
        """Which elements are missing, the first few."""
        with self._lock:
            edges = [0, *(edge for there in self._there for edge in there), self.values.size]
        missing = [f"{begin} to {end}" for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
        return f"elements {', '.join(missing[:SHOWN])}{', ...' if len(missing) > SHOWN else ''} are missing"

    def awaited(self, limit_s: float) -> str:
        """What is wrong where no piece was put for so long."""
        return f"no piece was put in {limit_s:g} s: {self.described}"

    def choose(self, blocks: Integers, most: int) -> Integers:
        """Places, ascending, of up to `most` of these blocks that may leave next: whole ones, by their level."""
        whole = np.flatnonzero(self._missing[blocks] == 0)
        first = whole[np.argsort(-self.level[blocks[whole]], kind="stable")[:most]]
        return np.sort(first)

    def check_range(self, begin: int, end: int) -> None:
        _check_whole(begin=begin, end=end)
        if not 0 <= begin < end <= self.values.size:
            raise GradientError(f"a piece must have 0 <= begin < end <= {self.values.size}, got {begin} to {end}")

    def _join(self, begin: int, end: int) -> None:
        """To the ranges that are there."""
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
