"""The steps of host/kofn_host/kernels/kernel.c in NumPy: the oracle of its tests."""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats, Floats64, Integers, Values
from kofn_host.kernels.kernel import PER_BLOCK, Addresses, Kernel, mean_of

PIECE = 1 << 18
"""Values rounded in one pass, few enough to stay in the cache."""

Chances = npt.NDArray[np.uint16]
"""Odd numbers. A value is rounded up if its remainder, in 2**-16 of a step, plus its number reaches a whole step."""

CHANCE_BITS = 16
"""Equals CHANCE_BITS in kernel.c."""


class NumpyKernel(Kernel):
    """Every step in NumPy, with results that equal the native code's bit for bit."""

    def __init__(self) -> None:
        """Compile nothing."""

    def first_bad(self, gradient: Floats, most: float) -> int:
        """Return the index of the first float that is not finite or exceeds `most` in magnitude; -1: none."""
        good = np.abs(gradient) <= most
        return -1 if good.all() else int(np.argmin(good))

    def round(self, values: Integers, shift: PER_BLOCK, limit: int) -> Values:
        """Return the values in steps of 2**shift, rounded to nearest (half a step up) and clipped to -limit..limit."""
        return self._rounded(values, shift, limit, None)

    def round_by_chance(self, values: Integers, shift: PER_BLOCK, limit: int, seed: int) -> Values:
        """Round stochastically: the expected value is the input, to 2**-16 of a step; `seed` has 32 bits."""
        return self._rounded(values, shift, limit, _chances(values, seed))

    def _rounded(self, values: Integers, shift: PER_BLOCK, limit: int, chances: Chances | None) -> Values:
        """Round to nearest, or with these random numbers."""
        lanes = np.empty(values.shape, np.int32)
        for rows, by in _alike(shift, values):
            lanes[rows] = _steps(values[rows], by, limit, None if chances is None else chances[rows])
        return lanes

    def votes(self, values: Integers) -> Values:
        """Return 1 for values of 0 and more, else 0."""
        return (values >= 0).astype(np.int32)

    def spread(self, lanes: Values, shift: PER_BLOCK, votes: PER_BLOCK | None = None) -> Integers:
        """Return lanes times 2**shift.

        `votes`: the lanes count positive votes out of so many, so a lane's value is 2 * lane - votes.
        """
        return _spread(lanes if votes is None else _majority(lanes, votes), shift)

    def scaled(self, values: Integers, factor: float | Floats64) -> Floats:
        """Return values times `factor`, computed in float64 and then rounded."""
        scaled: Floats = (values * factor).astype(np.float32)
        return scaled

    def step(self, gradient: Floats, velocity: Floats, parameters: Floats, *, rate: float, momentum: float) -> None:
        """Update velocity = momentum * velocity + gradient; parameters -= rate * velocity.

        All arrays are (N,). The last two change; each product and each sum is rounded to float32.
        """
        velocity *= np.float32(momentum)
        velocity += gradient
        parameters -= np.float32(rate) * velocity

    def magnitudes(self, values: Integers) -> tuple[Floats64, Floats64]:
        """Return the mean and the largest magnitude of each block (B,): the exact ones, rounded to float64."""
        sizes = np.abs(values)
        largest = sizes.max(axis=1)
        if int(largest.max(initial=0)) < 2**63 // values.shape[1]:
            mean: Floats64 = sizes.sum(axis=1) / values.shape[1]
        else:
            mean = mean_of((sizes >> 32).sum(axis=1), (sizes & 0xFFFFFFFF).sum(axis=1), values.shape[1])
        return mean, largest.astype(np.float64)

    def pack(self, lanes: Values, width: int) -> bytes:
        """Return the low `width` bits of each lane, as on the wire."""
        if width > 8:
            return lanes.astype(f">i{width // 8}").tobytes()
        octets = lanes.astype(np.uint8)
        if width == 1:
            return np.packbits(octets & 1).tobytes()
        return (octets if width == 8 else _halved(octets)).tobytes()

    def unpack(self, data: bytes | memoryview, width: int, *, signed: bool) -> Values:
        """Return lanes of `width` bits each, shape (lanes,)."""
        return _unpacked(data, width, signed=signed).astype(np.int32)

    def encode(self, values: Integers, shift: Integers, limit: int, seed: int | None, width: int) -> bytes:
        """Apply round(), or round_by_chance() with a seed, and pack(), to blocks of whole bytes."""
        chances = None if seed is None else _chances(values, seed)
        octets = np.empty(values.shape, _wire_type(width))
        for rows, by in _alike(shift, values):
            octets[rows] = _steps(values[rows], by, limit, None if chances is None else chances[rows])
        return (_halved(octets) if width == 4 else octets).tobytes()

    def encode_votes(self, values: Integers) -> bytes:
        """Apply votes() and pack() to blocks of whole bytes."""
        return np.packbits(values >= 0).tobytes()

    def gathered(self, places: Addresses, lanes: int) -> Values:
        """Return the 32-bit lanes of the blocks at these addresses (B,), shape (B, lanes)."""
        return _unpacked(_at(places, 4 * lanes), 32, signed=True).reshape(-1, lanes).astype(np.int32)


def _at(places: Addresses, size: int) -> bytes:
    """Return `size` bytes from each of these addresses."""
    return b"".join(ctypes.string_at(place, size) for place in places.tolist())


def _steps(values: Integers, shift: int, limit: int, chances: Chances | None) -> Integers:
    """Return whole steps of 2**shift, clipped, in a new array."""
    if chances is None:
        steps: Integers = values + (1 << shift >> 1)
        steps >>= shift
    else:
        fine = min(shift, CHANCE_BITS)
        steps = values >> shift - fine
        steps += chances >> CHANCE_BITS - fine
        steps >>= fine
    np.clip(steps, -limit, limit, out=steps)
    return steps


def _alike(shift: PER_BLOCK, values: Integers) -> Iterator[tuple[Any, int]]:
    """Yield rows of equal shift with that shift: NumPy is three times as fast with one number as
    with one for each row.
    """
    if isinstance(shift, int):
        yield ..., shift
        return
    at_once = max(1, PIECE // values.shape[1])
    found = np.unique(shift).tolist()
    for by in found:
        rows = None if len(found) == 1 else np.flatnonzero(shift == by)
        for begin in range(0, len(values) if rows is None else len(rows), at_once):
            piece = slice(begin, begin + at_once)
            yield piece if rows is None else rows[piece], by


def _spread(lanes: npt.NDArray[np.integer], shift: PER_BLOCK) -> Integers:
    """Return lanes times 2**shift; a shift common to all rows is applied as one number, which is twice as fast."""
    values = lanes.astype(np.int64)
    values <<= shift if isinstance(shift, int) or np.unique(shift).size != 1 else int(shift.flat[0])
    return values


def _majority(lanes: npt.NDArray[np.integer], votes: PER_BLOCK) -> Values:
    """Return the positive votes minus the negative votes."""
    more: Values = lanes.astype(np.int32)
    more *= 2
    more -= np.asarray(votes, np.int32)
    return more


def _wire_type(width: int) -> str:
    """Return the type of lanes; two of 4 bits share an octet in the end."""
    return f">i{max(width // 8, 1)}"


def _halved(octets: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    """Return the low halves of octets, two in each octet; `octets` is overwritten."""
    pairs = octets.reshape(-1).view("<u2")  # little-endian: the first lane of a pair is the low octet
    second = pairs >> 8
    second &= 15
    pairs <<= 4
    pairs |= second
    return pairs.astype(np.uint8)


def _unpacked(data: bytes | memoryview, width: int, *, signed: bool) -> npt.NDArray[np.integer]:
    """Return lanes of `width` bits in the narrowest type that holds them."""
    if width > 4:
        return np.frombuffer(data, f">{'i' if signed or width == 32 else 'u'}{width // 8}")
    if width == 1:
        bits = np.unpackbits(np.frombuffer(data, np.uint8)).view(np.int8)
        return -bits if signed else bits
    pairs = np.frombuffer(data, np.uint8).astype("<u2")
    octets = (pairs >> 4 | (pairs & 15) << 8).view(np.int8)
    if signed:
        octets ^= 8
        octets -= 8
    return octets


def _chances(values: Integers, seed: int) -> Chances:
    """Return an odd 16-bit number for each value; murmur3's finaliser of index and seed gives four at a time."""
    draws = np.arange(-(-values.size // 4), dtype=np.uint64)
    draws += np.uint64(seed << 32)
    high = np.empty_like(draws)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        draws ^= np.right_shift(draws, 33, out=high)
        draws *= np.uint64(factor)
    draws ^= np.right_shift(draws, 33, out=high)
    draws |= np.uint64(0x0001000100010001)
    return draws.astype("<u8", copy=False).view("<u2")[: values.size].reshape(values.shape)


NUMPY = NumpyKernel()
