"""The summary block: statistics of all workers' gradients, summed by the switch like any block.

Its lanes have 32 bits.  They hold the share of the gradient's bytes that the worker wishes to send, then the logarithms
of each block's mean and largest magnitude, over all pending values before anything is sent.  The sum divided by the
count is a mean that is bit-identical on every worker, because only integers and float64 products and quotients are
used.  For the same reason the logarithm is linear between powers of two: a library's log2 may differ between machines.

If there are too many blocks for one packet, neighbouring blocks share lanes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn_common.wire.packet import WORD_LANES
from kofn_common.wire.sizes import WORDS_MAX
from kofn_host.arrays import Floats64, Integers
from kofn_host.compression import side_values as note

ONE = 1 << 16
"""A wish of 1, and a logarithm of 1."""

FLOOR = -41 * ONE
"""Logarithm of a magnitude below the ledger's unit."""

GROUPS_MAX = ((WORDS_MAX - note.WORDS) * WORD_LANES - 1) // 2
"""The most groups of blocks that leave room for the side values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """Each block's mean and largest magnitude, shape (blocks,), in units of the gradient."""

    mean: Floats64
    largest: Floats64


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryBlock:
    """The content of a summary block's sum: the mean wish in units of 2**-16, and the mean magnitudes."""

    wish: int
    magnitudes: Magnitudes


def words(blocks: int) -> int:
    """Return the 256-byte words of the summary of `blocks` blocks."""
    return -(-(1 + 2 * len(_starts(blocks))) // WORD_LANES)


def lanes(wish: float, magnitudes: Magnitudes) -> npt.NDArray[np.int32]:
    """Return a worker's lanes, shape (words * 64,)."""
    blocks = len(magnitudes.mean)
    starts = _starts(blocks)
    sizes = np.diff(starts, append=blocks)
    filled = np.zeros(words(blocks) * WORD_LANES, np.int32)
    filled[0] = round(wish * ONE)
    filled[1 : 1 + len(starts)] = logarithm(np.add.reduceat(magnitudes.mean, starts) / sizes)
    filled[1 + len(starts) : 1 + 2 * len(starts)] = logarithm(np.maximum.reduceat(magnitudes.largest, starts))
    return filled


def read(sums: npt.NDArray[np.int32], count: int, blocks: int) -> SummaryBlock:
    """Return the content of the sum of `count` workers' lanes, for `blocks` blocks."""
    means = sums.astype(np.int64) // count
    starts = _starts(blocks)
    group = np.arange(blocks) // _share(blocks)
    magnitudes = Magnitudes(
        mean=power(means[1 : 1 + len(starts)])[group],
        largest=power(means[1 + len(starts) : 1 + 2 * len(starts)])[group],
    )
    return SummaryBlock(wish=int(means[0]), magnitudes=magnitudes)


def logarithm(values: Floats64) -> Integers:
    """Return binary logarithms of values >= 0, in units of 2**-16, rounded down, and linear between powers of two."""
    mantissa, exponent = np.frexp(values)
    logarithms = np.floor((2 * mantissa + (exponent - 2)) * ONE)
    return np.where(values > 0, np.maximum(logarithms, FLOOR), FLOOR).astype(np.int64)


def power(logarithms: Integers) -> Floats64:
    """Return the values with these logarithms."""
    powers: Floats64 = np.ldexp(1 + (logarithms & (ONE - 1)) / ONE, logarithms >> 16)
    return powers


def _share(blocks: int) -> int:
    """Return the number of neighbouring blocks that share lanes."""
    return -(-blocks // GROUPS_MAX)


def _starts(blocks: int) -> Integers:
    """Return the first block of each group."""
    return np.arange(0, blocks, _share(blocks), dtype=np.int64)
