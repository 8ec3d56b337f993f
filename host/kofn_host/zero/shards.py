"""The division of parameters among workers: a unit is divided into equal parts, padded with zeros.

A unit is gathered and reduced at once.  A unit has all parameters, or the parameters of one layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats, Integers

T = TypeVar("T", bound=np.generic)

Blocks = tuple[Sequence[tuple[int, slice]], Integers]
"""Each block's number and place in a shard, and the number of elements of every block, (blocks,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit has `size` elements, from `begin` on in the flat parameters.

    A worker's part has `chunk` elements, from `at` on in the worker's shard.
    """

    begin: int
    size: int
    chunk: int
    at: int

    @property
    def end(self) -> int:
        return self.begin + self.size

    @property
    def in_shard(self) -> slice:
        return slice(self.at, self.at + self.chunk)

    def padded(self, values: Floats, workers: int) -> Floats:
        """Return the unit's elements (size,) as the workers' rows (workers, chunk)."""
        rows = np.zeros(workers * self.chunk, np.float32)
        rows[: self.size] = values
        return rows.reshape(workers, self.chunk)


class Shards:
    """Shards of units with `sizes` elements: `elements` in all units, `shard_elements` in each shard, with padding.

    >>> shards = Shards([5, 3], 2)
    >>> shards.elements, shards.shard_elements
    (8, 5)
    >>> shards.cut(np.arange(8, dtype=np.float32), 1)
    array([3., 4., 0., 7., 0.], dtype=float32)
    >>> [part for part in shards.parts(1)]
    [(slice(3, 5, None), slice(0, 2, None)), (slice(7, 8, None), slice(3, 4, None))]
    """

    def __init__(self, sizes: Sequence[int], workers: int) -> None:
        chunks = [-(-size // workers) for size in sizes]
        begins, ats = accumulate(sizes, initial=0), accumulate(chunks, initial=0)
        self.workers = workers
        self.units = [
            Unit(begin=begin, size=size, chunk=chunk, at=at)
            for begin, size, chunk, at in zip(begins, sizes, chunks, ats, strict=False)
        ]
        self.elements, self.shard_elements = sum(sizes), sum(chunks)

    def parts(self, rank: int) -> Iterator[tuple[slice, slice]]:
        """Yield the places of a worker's elements in the flat parameters, and in its shard."""
        for unit in self.units:
            begin = min(unit.begin + rank * unit.chunk, unit.end)
            size = min(begin + unit.chunk, unit.end) - begin
            if size > 0:
                yield slice(begin, begin + size), slice(unit.at, unit.at + size)

    def cut(self, flat: npt.NDArray[T], rank: int) -> npt.NDArray[T]:
        """Return a worker's shard (shard_elements,) of flat values (elements,)."""
        shard = np.zeros(self.shard_elements, flat.dtype)
        for there, here in self.parts(rank):
            shard[here] = flat[there]
        return shard

    def rows(self, flat: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return all workers' shards (workers, shard_elements)."""
        return np.stack([self.cut(flat, rank) for rank in range(self.workers)])

    def placed(self, row: Floats, rank: int) -> Floats:
        """Return a worker's shard from its row, with zeros at the places of the padding."""
        shard = np.zeros(self.shard_elements, row.dtype)
        for _, here in self.parts(rank):
            shard[here] = row[here]
        return shard

    def shared_blocks(self, rank: int, block: int) -> Blocks:
        """Return the places, in a worker's shard, of blocks of `block` flat elements; and the sizes of all blocks."""
        edges = [*range(0, self.elements, block), self.elements]
        return [*self.segments(rank, edges)], np.diff(edges)

    def own_blocks(self, rank: int, block: int) -> Blocks:
        """Return the places and sizes of blocks that belong to one shard each, in turn (collectives.block_rows)."""
        begins = range(0, self.shard_elements, block)
        counts = np.zeros((len(begins), self.workers), np.int64)
        for other in range(self.workers):
            filled = np.zeros(self.shard_elements, np.int64)
            for _, here in self.parts(other):
                filled[here] = 1
            counts[:, other] = np.add.reduceat(filled, begins)
        own = [(at * self.workers + rank, slice(begin, begin + block)) for at, begin in enumerate(begins)]
        return own, np.maximum(counts.reshape(-1), 1)

    def segments(self, rank: int, edges: Sequence[int]) -> Iterator[tuple[int, slice]]:
        """Yield a shard's pieces, cut at `edges` of the flat elements: a piece's number, and its place in the shard."""
        for there, here in self.parts(rank):
            first = int(np.searchsorted(edges, there.start, side="right")) - 1
            for number in range(first, len(edges) - 1):
                begin, end = max(there.start, edges[number]), min(there.stop, edges[number + 1])
                if begin >= there.stop:
                    break
                if begin < end:
                    yield number, slice(here.start + begin - there.start, here.start + end - there.start)
