"""Encoding of arrays as 32-bit lanes that are summed modulo 2**32, and decoding of the sums.

This module has no packets and no network.  A block has L lanes; rows are blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats, Integers, Values
from kofn_host.collectives.call import Array
from kofn_host.errors import CollectiveError
from kofn_host.kernels.kernel import kernel
from kofn_host.protocol.results import address_of

LIMBS = ((0, 22), (22, 21), (43, 21))
"""The lowest bit and the number of bits of each limb of an int64: a lane has room for 64 workers' sum of a limb."""

PIECE = 1 << 18
"""Values per step: they fit a processor's cache."""

EXPONENTS_MOST = 1 << 16
"""The most exponents of a call; with more blocks, neighbouring blocks share an exponent."""

FLOAT32_MAX = float(np.finfo(np.float32).max)


class Outgoing(NamedTuple):
    """A worker's contribution: block numbers (N,), the addresses of their values (N,), and the owner of that memory."""

    blocks: Integers
    addresses: npt.NDArray[np.uint64]
    values: Any


class LaneCoding(ABC):
    """Encodes `per_block` elements of an array in a block of `lanes` lanes."""

    def __init__(self, lanes: int, per_block: int) -> None:
        self.lanes, self.per_block = lanes, per_block

    @abstractmethod
    def encode(self, rows: Array, first: int) -> Values:
        """Return lanes (B, L) of elements (B, per_block), from block `first` on."""

    @abstractmethod
    def decode(self, sums: Values, first: int) -> Array:
        """Return elements (B, per_block) of sums of lanes (B, L), given as signed numbers."""


class Bytes(LaneCoding):
    """Lanes of uint8 arrays that are zero at all workers except one, so that the sum is that worker's bytes."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes, 4 * lanes)

    def encode(self, rows: Array, first: int) -> Values:
        words: Values = rows.view(np.int32)
        return words

    def decode(self, sums: Values, first: int) -> Array:
        return sums.view(np.uint8)


class Int32(LaneCoding):
    """One lane per int32: sums wrap around."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes, lanes)

    def encode(self, rows: Array, first: int) -> Values:
        return rows

    def decode(self, sums: Values, first: int) -> Array:
        return sums


class Int64(LaneCoding):
    """Three lanes per int64 for its LIMBS, whose sums do not overflow; the combined sums wrap around."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes, lanes // len(LIMBS))

    def encode(self, rows: Array, first: int) -> Values:
        encoded = np.zeros((len(rows), self.lanes), np.int32)
        for at, (shift, bits) in enumerate(LIMBS):
            encoded[:, self._place(at)] = rows >> shift & (1 << bits) - 1
        return encoded

    def decode(self, sums: Values, first: int) -> Array:
        limbs = sums.astype(np.int64)
        low, middle, high = (limbs[:, self._place(at)] << shift for at, (shift, _) in enumerate(LIMBS))
        whole: Array = low + middle + high
        return whole

    def _place(self, limb: int) -> slice:
        return slice(limb * self.per_block, (limb + 1) * self.per_block)


class FixedPoint(LaneCoding):
    """Floats in steps of a power of two, the same for a block's values at all workers.

    With n workers and h = ceil(log2(n)), each number is rounded to within 2**(h - 31) of m, the largest magnitude of
    any worker in the number's block.  The sum of the rounded numbers is exact.  Divided by `divisor`, the sum is
    rounded to float64, then to the array's dtype.  So the error is at most n * 2**(h - 31) m for a sum, 2**(h - 31) m
    for a mean (4 workers: 2**-27 m, 2**-29 m), plus the rounding to the dtype.  `exponents`: for each block, or group
    that shares an exponent, the largest of all workers' exponents_of().
    """

    def __init__(self, lanes: int, blocks: int, exponents: bytes, workers: int, divisor: int) -> None:
        super().__init__(lanes, lanes)
        biased = np.repeat(np.frombuffer(exponents, np.uint8), sharing(blocks))[:blocks]
        headroom = (workers - 1).bit_length()
        # steps per 1: a worker's number is below 2**31 / n steps
        self._steps = np.ldexp(1.0, 157 - headroom - biased.astype(np.int32))[:, None]
        self._divisors = self._steps * divisor

    def encode(self, rows: Array, first: int) -> Values:
        scaled = np.multiply(rows, self._steps[first : first + len(rows)], dtype=np.float64)
        return np.rint(scaled, out=scaled).astype(np.int32)

    def decode(self, sums: Values, first: int) -> Array:
        found: Array = sums / self._divisors[first : first + len(sums)]
        return found


def sharing(blocks: int) -> int:
    """Return the number of neighbouring blocks that share an exponent."""
    return max(1, -(-blocks // EXPONENTS_MOST))


def exponents_of(flat: Floats, per_block: int) -> bytes:
    """Return the biased IEEE 754 exponent of the largest magnitude in each block, or group that shares an exponent.

    Values with this exponent or a lower exponent are below 2**(exponent - 126).
    """
    if not flat.size:
        return b""
    starts = np.arange(0, flat.size, per_block * sharing(-(-flat.size // per_block)))
    largest = np.maximum(np.maximum.reduceat(flat, starts), -np.minimum.reduceat(flat, starts))
    return (np.abs(largest).view(np.uint32) >> 23).astype(np.uint8).tobytes()


def check_finite(given: Array) -> None:
    """Raise CollectiveError if an element is not finite; the message names the first such element."""
    flat = floats_of(given)
    if (bad := kernel().first_bad(flat, FLOAT32_MAX)) >= 0:
        raise CollectiveError(f"array element {bad} must be finite in a sum in the switch, got {flat[bad]}")


def floats_of(given: Array) -> Floats:
    """Return the array flat, as float32."""
    return np.ascontiguousarray(given, np.float32).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSum:
    """A sum of all workers' flat `source`; `target` gets the sum's elements from `begin` on.

    `row_blocks`: in the order of ranks, each worker alone receives this number of consecutive blocks; 0: all workers
    receive all blocks.
    """

    coding: LaneCoding
    source: Array
    target: Array
    begin: int = 0
    row_blocks: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.source.size // self.coding.per_block)

    @property
    def span(self) -> int:
        """A divisor of the number of blocks in an iteration."""
        return 1

    def owners(self, blocks: range) -> None:
        """Return None: all workers contribute to all blocks."""

    def recipients(self, blocks: range) -> Integers | None:
        """Return the recipient of each block's sum; None if all workers receive it."""
        return np.arange(blocks.start, blocks.stop) // self.row_blocks if self.row_blocks else None

    @property
    def whole(self) -> int:
        """The number of blocks whose sums this worker receives."""
        return self.row_blocks or self.blocks

    def encode(self, blocks: range) -> Outgoing:
        """Return these blocks as on the wire, one after another."""
        lanes = np.empty((len(blocks), self.coding.lanes), np.int32)
        for some in self._groups(blocks):
            lanes[some.start - blocks.start : some.stop - blocks.start] = self.coding.encode(
                self._rows(some), some.start
            )
        values, numbers = kernel().pack(lanes, 32), np.arange(len(blocks))
        return Outgoing(numbers, (address_of(values) + 4 * self.coding.lanes * numbers).astype(np.uint64), values)

    def decode(self, blocks: range, places: npt.NDArray[np.uint64]) -> None:
        """Decode the sums of these blocks, which lie at the addresses `places`, (B,), as on the wire."""
        per_block, end = self.coding.per_block, self.begin + self.target.size
        own = range(max(blocks.start, self.begin // per_block), min(blocks.stop, -(-end // per_block)))
        for some in self._groups(own):
            at = some.start * per_block
            low, high = max(at, self.begin), min(some.stop * per_block, end)
            if low < high:
                addresses = places[some.start - blocks.start : some.stop - blocks.start]
                sums = kernel().gathered(addresses, self.coding.lanes)
                found = self.coding.decode(sums, some.start).reshape(-1)
                self.target[low - self.begin : high - self.begin] = found[low - at : high - at]

    def _groups(self, blocks: range) -> Sequence[range]:
        """Return groups of blocks that fit the cache."""
        at_once = max(1, PIECE // self.coding.lanes)
        return [blocks[at : at + at_once] for at in range(0, len(blocks), at_once)]

    def _rows(self, blocks: range) -> Array:
        """Return elements (B, per_block), padded with zeros."""
        per_block = self.coding.per_block
        found = self.source[blocks.start * per_block : blocks.stop * per_block]
        missing = len(blocks) * per_block - found.size
        padded = np.concatenate([found, np.zeros(missing, found.dtype)]) if missing else found
        return padded.reshape(len(blocks), per_block)
