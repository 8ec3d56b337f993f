"""The arithmetic on whole gradients that costs time: rounding, lanes, means.  In C where it can be compiled.

`Kernel` says in NumPy what each step is, and does it where there is no C compiler; `host.native` does the same with
kernel.c, with the same result to the bit.  Blocks are rows: arrays of values and lanes are (B, L) or (L,), numbers for
each block (B, 1) or single numbers.  Knows nothing of units and codecs.
"""

import contextlib
import logging
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from host.wire import Values
from switch.errors import CompileError, CompilerMissing

log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]
Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]

PER_BLOCK = int | Int64s

SHIFT_MAX = 40
"""Largest `shift` of all functions."""


class Kernel:
    """Every step in NumPy.  Arguments are never changed; results are new arrays."""

    name = "numpy"

    def fix(self, gradient: Floats32, unit: float, most: float) -> tuple[Int64s, int]:
        """Floats in units of 1 / `unit`, and the first that is not finite or above `most` in magnitude (-1: none)."""
        if not np.max(np.abs(gradient), initial=0.0) <= most:
            return np.zeros(0, np.int64), int(np.argmax(~(np.abs(gradient) <= most)))
        exact = gradient.astype(np.float64)
        exact *= unit
        return np.rint(exact, out=exact).astype(np.int64), -1

    def round(self, values: Int64s, shift: PER_BLOCK, limit: int) -> Values:
        """Values in steps of 2**shift, to the nearest (half a step up), clipped to -limit..limit."""
        shift = _one(shift)
        return _clipped(values + (np.left_shift(1, shift) >> 1), shift, limit)

    def round_by_chance(self, values: Int64s, shift: PER_BLOCK, limit: int, seed: int) -> Values:
        """The same, up or down by chance so that the mean is the value; `seed`: 32 bits."""
        chance = np.left_shift(_mixed(values.size, seed), 8, dtype=np.int64).reshape(values.shape)
        shift = _one(shift)
        chance >>= SHIFT_MAX - shift
        chance += values
        return _clipped(chance, shift, limit)

    def spread(self, lanes: Values, shift: PER_BLOCK) -> Int64s:
        """Lanes times 2**shift."""
        values: Int64s = lanes.astype(np.int64)
        values <<= _one(shift)
        return values

    def scaled(self, values: Int64s, factor: float | Floats64) -> Floats32:
        """Values times `factor`, in float64 and then rounded."""
        scaled: Floats32 = (values * factor).astype(np.float32)
        return scaled

    def magnitudes(self, values: Int64s) -> tuple[Floats64, Floats64]:
        """Of each block the mean and the largest magnitude (B,): the exact ones, rounded to float64."""
        sizes = np.abs(values)
        largest = sizes.max(axis=1)
        if int(largest.max(initial=0)) < 2**63 // values.shape[1]:
            mean: Floats64 = sizes.sum(axis=1) / values.shape[1]
        else:
            mean = mean_of((sizes >> 32).sum(axis=1), (sizes & 0xFFFFFFFF).sum(axis=1), values.shape[1])
        return mean, largest.astype(np.float64)

    def pack(self, lanes: Values, width: int) -> bytes:
        """Of each lane the low `width` bits, as on the wire."""
        if width > 8:
            return lanes.astype(f">i{width // 8}").tobytes()
        octets = lanes.astype(np.uint8)
        if width == 8:
            return octets.tobytes()
        pairs = octets.reshape(-1).view("<u2")  # the first lane of two is the low octet
        return (pairs << 4 | pairs >> 8 & 15).astype(np.uint8).tobytes()

    def unpack(self, data: bytes | memoryview, width: int, *, signed: bool) -> Values:
        """Lanes of `width` bits each, shape (lanes,)."""
        return _unpacked(data, width, signed=signed).astype(np.int32)

    def encode(
        self, values: Int64s, shift: Int64s, limit: int, seed: int | None, width: int, keep: Values | None
    ) -> bytes:
        """round(), or with a seed round_by_chance(), and pack(), of blocks of whole bytes; `keep`: the lanes too."""
        lanes = self.round(values, shift, limit) if seed is None else self.round_by_chance(values, shift, limit, seed)
        if keep is not None:
            keep[...] = lanes
        return self.pack(lanes, width)

    def decode(self, data: bytes | memoryview, shift: Int64s, width: int, *, signed: bool) -> Int64s:
        """unpack() and spread() of as many blocks as there are shifts (B, 1), of whole bytes."""
        values: Int64s = _unpacked(data, width, signed=signed).astype(np.int64).reshape(len(shift), -1)
        values <<= _one(shift)
        return values


def _clipped(values: Int64s, shift: PER_BLOCK, limit: int) -> Values:
    """Whole steps of `values`, which is overwritten, clipped."""
    values >>= shift
    np.clip(values, -limit, limit, out=values)
    return values.astype(np.int32)


def _one(shift: PER_BLOCK) -> PER_BLOCK:
    """One number where it is the same for all blocks: NumPy is twice as fast with it."""
    if isinstance(shift, int) or not shift.size or shift.min() != shift.max():
        return shift
    return int(shift.flat[0])


def _unpacked(data: bytes | memoryview, width: int, *, signed: bool) -> npt.NDArray[np.integer]:
    """Lanes of `width` bits in the narrowest type that holds them."""
    if width > 4:
        return np.frombuffer(data, f">{'i' if signed or width == 32 else 'u'}{width // 8}")
    pairs = np.frombuffer(data, np.uint8).astype("<u2")
    octets = (pairs >> 4 | (pairs & 15) << 8).view(np.int8)
    if signed:
        octets ^= 8
        octets -= 8
    return octets


def _mixed(size: int, seed: int) -> npt.NDArray[np.uint32]:
    """32 bits for each element's number: murmur3's finaliser of number + seed."""
    bits = np.arange(size, dtype=np.uint32)
    bits += np.uint32(seed)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits ^= bits >> shift
        bits *= np.uint32(factor)
    bits ^= bits >> 16
    return bits


def mean_of(high: npt.NDArray[np.integer], low: npt.NDArray[np.integer], lanes: int) -> Floats64:
    """The mean of `lanes` magnitudes whose upper and lower 32 bits are summed apart; one rounding for the sum."""
    total = high.astype(np.float64) * 2.0**32 + low.astype(np.float64)
    mean: Floats64 = total / lanes
    return mean


NUMPY = Kernel()


@cache
def native() -> Kernel | None:
    """The compiled kernel; None, and a word in the log, where it cannot be had."""
    from host.native import NativeKernel  # noqa: PLC0415  # it is a Kernel itself

    try:
        return NativeKernel()
    except (CompilerMissing, CompileError, OSError) as error:  # OSError: no place to keep it, or it cannot be loaded
        log.info("codecs use NumPy: %s", error)
        return None


_chosen: list[Kernel] = []


def kernel() -> Kernel:
    """The one to use: the compiled one where there is one."""
    return _chosen[-1] if _chosen else native() or NUMPY


@contextlib.contextmanager
def using(chosen: Kernel) -> Iterator[None]:
    """Another one for a while, in all threads: to compare them."""
    _chosen.append(chosen)
    try:
        yield
    finally:
        _chosen.pop()
