"""Bytes of one worker in blocks that it owns: only the owner sends them, and all workers receive them unchanged.

Owners take turns: among any `span` consecutive blocks each worker owns at least one, as protocol.owned() requires.
"""

import ctypes
from collections.abc import Sequence
from itertools import repeat
from typing import Self

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Integers
from kofn_host.collectives.call import Array
from kofn_host.collectives.exact_lanes import Outgoing

Bytes = npt.NDArray[np.uint8]


class OwnedBytes:
    """The parts of the flat `target`, which different workers send.

    `source`: this worker's bytes, which begin at the target's byte `begin`.  `turn`: the owners of `span` consecutive
    blocks.  Block b, owned by turn[b % span], has the `sizes[b]` bytes of the target from `offsets[b]` on; the size may
    be 0.
    """

    def __init__(
        self,
        *,
        rank: int,
        block_bytes: int,
        turn: Sequence[int],
        offsets: Integers,
        sizes: Integers,
        source: Array,
        target: Array,
        begin: int = 0,
    ) -> None:
        self.span, self.blocks = len(turn), len(offsets)
        self._rank, self._block_bytes, self._turn = rank, block_bytes, np.array(turn)
        self._offsets, self._sizes = offsets, sizes
        apart = not np.may_share_memory(source, target)
        self._source: Bytes = (source if apart else source.copy()).view(np.uint8)
        self._target: Bytes = target.view(np.uint8)
        self._begin = begin

    @classmethod
    def gathered(cls, rank: int, workers: int, block_bytes: int, row: Array, target: Array) -> Self:
        """Return the blocks of an all-gather; `target` has the rows by rank."""
        at = block_bytes * np.repeat(np.arange(_blocks(row.nbytes, block_bytes)), workers)
        rows = np.resize(np.arange(workers), at.size)
        return cls(
            rank=rank,
            block_bytes=block_bytes,
            turn=range(workers),
            offsets=rows * row.nbytes + at,
            sizes=np.minimum(block_bytes, row.nbytes - at),
            source=row,
            target=target,
            begin=rank * row.nbytes,
        )

    @classmethod
    def broadcast(
        cls, rank: int, workers: int, block_bytes: int, root: int, source: Array, target: Array, most_span: int
    ) -> Self:
        """Return the blocks of a broadcast.

        In each turn every worker but the root owns an empty block, which shows that worker's progress.
        """
        blocks = _blocks(source.nbytes, block_bytes)
        turns = _blocks(blocks, most_span - (workers - 1))
        of_root = _blocks(blocks, turns)
        others = [other for other in range(workers) if other != root]
        at = np.full((turns, of_root + len(others)), blocks)
        at[:, :of_root] = np.arange(turns * of_root).reshape(turns, of_root)
        offsets = block_bytes * at.reshape(-1)
        return cls(
            rank=rank,
            block_bytes=block_bytes,
            turn=[*repeat(root, of_root), *others],
            offsets=offsets,
            sizes=np.clip(source.nbytes - offsets, 0, block_bytes),
            source=source,
            target=target,
        )

    def owners(self, blocks: range) -> Integers:
        """Return the owners of these blocks; the first block must begin a turn."""
        return np.resize(self._turn, len(blocks))

    def recipients(self, blocks: range) -> None:
        """Return None: all workers receive all blocks."""

    @property
    def whole(self) -> int:
        return self.blocks

    def encode(self, blocks: range) -> Outgoing:
        """Return this worker's blocks; whole blocks are not copied."""
        own = np.flatnonzero(self.owners(blocks) == self._rank)
        offsets, sizes = self._offsets[blocks.start + own], self._sizes[blocks.start + own]
        addresses = self._source.ctypes.data + offsets - self._begin
        cut = np.flatnonzero(sizes < self._block_bytes)
        padded = np.zeros((len(cut), self._block_bytes), np.uint8)
        for row, at in zip(padded, cut, strict=True):
            begin = offsets[at] - self._begin
            row[: sizes[at]] = self._source[begin : begin + sizes[at]]
        addresses[cut] = padded.ctypes.data + self._block_bytes * np.arange(len(cut))
        return Outgoing(own, addresses.astype(np.uint64), (self._source, padded))

    def decode(self, blocks: range, places: npt.NDArray[np.uint64]) -> None:
        """Copy these received blocks from their addresses, (B,), to the target."""
        target, which = self._target.ctypes.data, slice(blocks.start, blocks.stop)
        for place, offset, size in zip(
            places.tolist(), self._offsets[which].tolist(), self._sizes[which].tolist(), strict=True
        ):
            if size:
                ctypes.memmove(target + offset, place, size)


def _blocks(size: int, most: int) -> int:
    return -(-size // most)
