"""The expensive arithmetic on whole gradients: rounding, lanes and means, from kernel.c through ctypes.

Blocks are rows: arrays of values and lanes are (B, L) or (L,), numbers per block are (B, 1) or scalars.  This module
knows nothing of units and codecs.
"""

import ctypes
from ctypes import c_char_p, c_float, c_int, c_int64, c_ssize_t, c_uint32, c_void_p, py_object
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kofn_common.nativebuild.library import Signatures, compile_file, load_library
from kofn_common.places import folder_of
from kofn_host.arrays import Floats, Floats64, Integers, Values
from kofn_host.native import required

SOURCE = Path(__file__).with_name("kernel.c")
INCLUDE = folder_of("kofn_common") / "wire"
"""The folder of values.h."""

PER_BLOCK = int | Integers

Addresses = npt.NDArray[np.uint64]

Weights = npt.NDArray[np.uint64]
"""Weights of a block's lanes."""

_allocate = ctypes.pythonapi.PyBytes_FromStringAndSize
_allocate.restype, _allocate.argtypes = py_object, [c_char_p, c_ssize_t]
_address = ctypes.pythonapi.PyBytes_AsString
_address.restype, _address.argtypes = c_void_p, [py_object]

CHUNK_LANES = 1024
"""The constant of the same name in kernel.c."""

ROWS = [c_void_p, c_int64, c_int64]
"""An array, its blocks, the lanes of a block."""

SIGNATURES: Signatures = {
    "kernel_first_bad": (c_int64, [c_void_p, c_int64, c_float]),
    "kernel_round": (None, [*ROWS, c_void_p, c_int64, c_void_p]),
    "kernel_round_by_chance": (None, [*ROWS, c_void_p, c_int64, c_uint32, c_void_p]),
    "kernel_votes": (None, [c_void_p, c_int64, c_void_p]),
    "kernel_spread": (None, [*ROWS, c_void_p, c_void_p, c_void_p]),
    "kernel_scale": (None, [*ROWS, c_void_p, c_void_p]),
    "kernel_step": (None, [c_void_p, c_int64, c_float, c_float, c_void_p, c_void_p]),
    "kernel_magnitudes": (None, [*ROWS, c_void_p, c_void_p, c_void_p]),
    "kernel_pack": (None, [c_void_p, c_int64, c_int, c_void_p]),
    "kernel_unpack": (None, [c_void_p, c_int64, c_int, c_int, c_void_p]),
    "kernel_encode": (None, [*ROWS, c_void_p, c_int64, c_int64, c_int, c_void_p, c_void_p]),
    "kernel_encode_votes": (None, [c_void_p, c_int64, c_void_p]),
    "kernel_gather": (None, [*ROWS, c_void_p]),
}


class Kernel:
    """The steps of kernel.c.  Only step() and averaged() change arguments; results are new arrays."""

    def __init__(self) -> None:
        self._library = load_library(compile_file(SOURCE, include=INCLUDE), SIGNATURES)

    def first_bad(self, gradient: Floats, most: float) -> int:
        """Return the index of the first float that is not finite or above `most` in magnitude; -1: none."""
        gradient = np.ascontiguousarray(gradient, np.float32)
        return int(self._library.kernel_first_bad(gradient.ctypes.data, gradient.size, most))

    def round(self, values: Integers, shift: PER_BLOCK, limit: int) -> Values:
        """Round values to the nearest step of 2**shift, and half a step up; clip the steps to -limit..limit."""
        return self._lanes("kernel_round", values, shift, limit)

    def round_by_chance(self, values: Integers, shift: PER_BLOCK, limit: int, seed: int) -> Values:
        """Round stochastically: the mean is the value, to 2**-16 of a step; `seed`: 32 bits."""
        return self._lanes("kernel_round_by_chance", values, shift, limit, seed)

    def _lanes(self, name: str, values: Integers, shift: PER_BLOCK, *numbers: int) -> Values:
        """Call a function that turns int64 values into int32 lanes, block by block."""
        values, by = np.ascontiguousarray(values, np.int64), _blocks(values, shift)
        lanes = np.empty(values.shape, np.int32)
        getattr(self._library, name)(*_rows(values), by.ctypes.data, *numbers, lanes.ctypes.data)
        return lanes

    def votes(self, values: Integers) -> Values:
        """Return 1 for values >= 0, else 0."""
        values, lanes = np.ascontiguousarray(values, np.int64), np.empty(values.shape, np.int32)
        self._library.kernel_votes(values.ctypes.data, values.size, lanes.ctypes.data)
        return lanes

    def spread(self, lanes: Values, shift: PER_BLOCK, votes: PER_BLOCK | None = None) -> Integers:
        """Return lanes times 2**shift.

        `votes`: if a lane counts the ones among this many votes, its value is 2 * lane - votes.
        """
        lanes, by, base = np.ascontiguousarray(lanes, np.int32), *_lines(_blocks(lanes, shift), votes)
        values = np.empty(lanes.shape, np.int64)
        self._library.kernel_spread(*_rows(lanes), by.ctypes.data, base.ctypes.data, values.ctypes.data)
        return values

    def scaled(self, values: Integers, factor: float | Floats64) -> Floats:
        """Return values times `factor`, computed in float64 and then rounded."""
        values, by = np.ascontiguousarray(values, np.int64), _blocks(values, factor, np.float64)
        scaled = np.empty(values.shape, np.float32)
        self._library.kernel_scale(*_rows(values), by.ctypes.data, scaled.ctypes.data)
        return scaled

    def step(self, gradient: Floats, velocity: Floats, parameters: Floats, *, rate: float, momentum: float) -> None:
        """Set velocity = momentum * velocity + gradient, then parameters -= rate * velocity.

        All arrays have the shape (N,); `velocity` and `parameters` must be contiguous.  Each product and each sum is
        rounded to float32.
        """
        gradient = np.ascontiguousarray(gradient, np.float32)
        changed = (velocity.ctypes.data, parameters.ctypes.data)
        self._library.kernel_step(gradient.ctypes.data, gradient.size, rate, momentum, *changed)

    def magnitudes(self, values: Integers) -> tuple[Floats64, Floats64]:
        """Return the mean and the largest magnitude of each block, (B,): exact values, rounded to float64."""
        values = np.ascontiguousarray(values, np.int64)
        found = np.empty((3, len(values)), np.uint64)
        self._library.kernel_magnitudes(*_rows(values), *(row.ctypes.data for row in found))
        high, low, largest = found
        return mean_of(high, low, values.shape[1]), largest.astype(np.float64)

    def pack(self, lanes: Values, width: int) -> bytes:
        """Pack the low `width` bits of each lane, as on the wire."""
        lanes = np.ascontiguousarray(lanes, np.int32)
        packed, at = _new_bytes(lanes.size * width // 8)
        self._library.kernel_pack(lanes.ctypes.data, lanes.size, width, at)
        return packed

    def unpack(self, data: bytes | memoryview, width: int, *, signed: bool) -> Values:
        """Unpack lanes of `width` bits, shape (lanes,)."""
        packed, lanes = np.frombuffer(data, np.uint8), np.empty(len(data) * 8 // width, np.int32)
        self._library.kernel_unpack(packed.ctypes.data, lanes.size, width, signed, lanes.ctypes.data)
        return lanes

    def encode(self, values: Integers, shift: Integers, limit: int, seed: int | None, width: int) -> bytes:
        """Apply round(), or with a seed round_by_chance(), and pack() to blocks of whole bytes."""
        values, by, buffer = np.ascontiguousarray(values, np.int64), _blocks(values, shift), _buffer(values.shape[1])
        packed, at = _new_bytes(values.size * width // 8)
        chance = -1 if seed is None else seed
        self._library.kernel_encode(*_rows(values), by.ctypes.data, limit, chance, width, buffer.ctypes.data, at)
        return packed

    def encode_votes(self, values: Integers) -> bytes:
        """Apply votes() and pack() to blocks of whole bytes."""
        values = np.ascontiguousarray(values, np.int64)
        packed, at = _new_bytes(values.size // 8)
        self._library.kernel_encode_votes(values.ctypes.data, values.size, at)
        return packed

    def gathered(self, places: Addresses, lanes: int) -> Values:
        """Unpack 32-bit lanes of blocks at these addresses (B,), shape (B, lanes)."""
        found = np.empty((len(places), lanes), np.int32)
        self._library.kernel_gather(places.ctypes.data, *found.shape, found.ctypes.data)
        return found

    def averaged(
        self, total: Integers, blocks: Integers, factor: Floats64, *, weights: Weights, mean: Floats
    ) -> Integers:
        """Write scaled() sums (B, L) of these blocks to the blocks' places in `mean` (N,); drop elements beyond N.

        Return the sum of each block's values times `weights` (L,), modulo 2**64: shape (B,).
        """
        lanes, found = total.shape[1], self.scaled(total, factor)
        complete = mean.size // lanes  # blocks that lie in the mean as a whole
        rows, rest = mean[: complete * lanes].reshape(-1, lanes), mean[complete * lanes :]
        inside = blocks < complete
        if inside.any():
            rows[rows_of(blocks[inside].tolist())] = found[inside]
        for row in found[~inside]:
            rest[...] = row[: rest.size]
        sums: Integers = np.dot(total.view(np.uint64), weights).view(np.int64)
        return sums


def rows_of(blocks: list[int]) -> slice | list[int]:
    """Return an index of these rows: a slice if they are consecutive, so that NumPy makes no copy."""
    first, end = blocks[0], blocks[0] + len(blocks)
    return slice(first, end) if blocks == list(range(first, end)) else blocks


def mean_of(high: npt.NDArray[np.integer], low: npt.NDArray[np.integer], lanes: int) -> Floats64:
    """Return the mean of `lanes` magnitudes from the sums of their upper and lower 32 bits; the sum is rounded once."""
    total = high.astype(np.float64) * 2.0**32 + low.astype(np.float64)
    mean: Floats64 = total / lanes
    return mean


def _lines(shift: Integers, votes: PER_BLOCK | None) -> tuple[Integers, Integers]:
    """Return the shift and the base of each block: a lane's value is `lane << shift` minus the base."""
    if votes is None:
        return shift, np.zeros_like(shift)
    return shift + 1, np.ascontiguousarray(np.broadcast_to(votes << shift, shift.shape))


def _buffer(lanes: int) -> Values:
    """Return room for a row and for a chunk."""
    return np.empty(max(lanes, CHUNK_LANES), np.int32)


def _new_bytes(size: int) -> tuple[bytes, int]:
    """Return new bytes and their address; the caller must fill them before passing them on."""
    new: bytes = _allocate(None, size)
    return new, _address(new)


def _rows(array: npt.NDArray[Any]) -> tuple[int, int, int]:
    """Return an array's address, the number of its blocks, and the number of lanes of a block."""
    lanes = array.shape[-1]
    return array.ctypes.data, array.size // max(lanes, 1), lanes


def _blocks(array: npt.NDArray[Any], number: Any, kind: type = np.int64) -> npt.NDArray[Any]:
    """Return one number for each block."""
    numbers = np.empty((*array.shape[:-1], 1), kind)
    numbers[...] = number
    return numbers


@cache
def kernel() -> Kernel:
    """Return the kernel, compiled if the cache lacks it; LedgerError if it is unavailable."""
    with required("codecs are"):
        return Kernel()
