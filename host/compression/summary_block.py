"""The summary block: what all workers tell each other beside a gradient, summed by the switch like any block.

Its lanes have 32 bits: the share of the gradient's bytes that the worker wishes to send, then for each block the
logarithm of its mean magnitude and that of its largest, of all that is pending before anything is sent.  The sum over
the count is a mean that every worker has, bit by bit: all is integers here, or float64 that is multiplied and divided
only.  So the logarithm is linear between the powers of two: a library's log2 may differ from machine to machine.

Where the blocks are too many for one packet, neighbours share their lanes.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats64, Integers
from kofn.host.compression import side_values as note
from kofn.host.wire.packet import WORD_LANES, WORDS_MAX

ONE = 1 << 16
"""A wish of 1, and a logarithm of 1."""

FLOOR = -41 * ONE
"""Logarithm of a magnitude below all that ledger can hold."""

GROUPS_MAX = ((WORDS_MAX - note.WORDS) * WORD_LANES - 1) // 2
"""Notes must have room behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitudes:
    """Of each block's values: the mean magnitude and the largest, shape (blocks,), in units of the gradient."""

    mean: Floats64
    largest: Floats64


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryBlock:
    """What a summary block's sum says: the mean of the wishes in units of 2**-16, and mean magnitudes."""

    wish: int
    magnitudes: Magnitudes


def words(blocks: int) -> int:
    """256-byte words of the summary of so many blocks."""
    return -(-(1 + 2 * len(_starts(blocks))) // WORD_LANES)


def lanes(wish: float, magnitudes: Magnitudes) -> npt.NDArray[np.int32]:
    """A worker's own, shape (words * 64,)."""
    blocks = len(magnitudes.mean)
    starts = _starts(blocks)
    sizes = np.diff(starts, append=blocks)
    filled = np.zeros(words(blocks) * WORD_LANES, np.int32)
    filled[0] = round(wish * ONE)
    filled[1 : 1 + len(starts)] = logarithm(np.add.reduceat(magnitudes.mean, starts) / sizes)
    filled[1 + len(starts) : 1 + 2 * len(starts)] = logarithm(np.maximum.reduceat(magnitudes.largest, starts))
    return filled


def read(sums: npt.NDArray[np.int32], count: int, blocks: int) -> SummaryBlock:
    """What the sum of `count` workers' lanes says of so many blocks."""
    means = sums.astype(np.int64) // count
    starts = _starts(blocks)
    group = np.arange(blocks) // _share(blocks)
    magnitudes = Magnitudes(
        mean=power(means[1 : 1 + len(starts)])[group],
        largest=power(means[1 + len(starts) : 1 + 2 * len(starts)])[group],
    )
    return SummaryBlock(wish=int(means[0]), magnitudes=magnitudes)


def logarithm(values: Floats64) -> Integers:
    """Of values of 0 and more, to the base 2, in units of 2**-16, rounded down; linear between powers of two."""
    mantissa, exponent = np.frexp(values)
    logarithms = np.floor((2 * mantissa + (exponent - 2)) * ONE)
    return np.where(values > 0, np.maximum(logarithms, FLOOR), FLOOR).astype(np.int64)


def power(logarithms: Integers) -> Floats64:
    """What these are the logarithms of."""
    powers: Floats64 = np.ldexp(1 + (logarithms & (ONE - 1)) / ONE, logarithms >> 16)
    return powers


def _share(blocks: int) -> int:
    """How many neighbours share their lanes."""
    return -(-blocks // GROUPS_MAX)


def _starts(blocks: int) -> Integers:
    """The first block of each group."""
    return np.arange(0, blocks, _share(blocks), dtype=np.int64)
