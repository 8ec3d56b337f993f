"""Lanes of all workers, summed modulo 2**32 as a switch does, equal NumPy's sums."""

from collections.abc import Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_host.collectives.call import FLOATING, Array
from kofn_host.collectives.coordinator import largest_of
from kofn_host.collectives.exact_lanes import (
    EXPONENTS_MOST,
    Bytes,
    FixedPoint,
    Int32,
    Int64,
    LaneCoding,
    LaneSum,
    exponents_of,
    floats_of,
    sharing,
)

LANES = 64

assert ml_dtypes.bfloat16  # the import registers the type with NumPy


def summed(arrays: Sequence[Array], coding: LaneCoding, target: Array, begin: int = 0, part: int = 5) -> Array:
    """Sum the arrays into `target`, in iterations of `part` blocks."""
    sums = [LaneSum(coding=coding, source=array, target=target, begin=begin) for array in arrays]
    for first in range(0, sums[0].blocks, part):
        blocks = range(sums[0].blocks)[first : first + part]
        lanes = [np.frombuffer(one.encode(blocks).values, ">u4").astype(np.uint32) for one in sums]
        packed = np.add.reduce(lanes, dtype=np.uint32).astype(">u4")
        assert packed.size == len(blocks) * LANES
        places = packed.ctypes.data + 4 * LANES * np.arange(len(blocks), dtype=np.uint64)
        sums[0].decode(blocks, places)
    return target


def as_floats(arrays: Sequence[Array], *, mean: bool = False) -> Array:
    """Sum with the exponents on which the workers agree."""
    notes = [exponents_of(floats_of(array), LANES) for array in arrays]
    agreed = notes[0]
    for note in notes[1:]:
        agreed = largest_of(agreed, note)
    blocks, workers = -(-arrays[0].size // LANES), len(arrays)
    coding = FixedPoint(LANES, blocks, agreed, workers, workers if mean else 1)
    return summed(arrays, coding, np.empty_like(arrays[0]))


def drawn(workers: int, size: int, dtype: str) -> list[Array]:
    """Draw integers of any size."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    draws = [np.random.default_rng([rank, size]) for rank in range(workers)]
    return [draw.integers(least, most, size, np.dtype(dtype), endpoint=True) for draw in draws]


@pytest.mark.parametrize("workers", [1, 2, 3, 64])
@pytest.mark.parametrize("size", [1, LANES, 1000])
def test_integers_wrap_around(workers: int, size: int) -> None:
    codings: dict[str, LaneCoding] = {"int32": Int32(LANES), "int64": Int64(LANES)}
    for dtype, coding in codings.items():
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        arrays = drawn(workers, size, dtype)
        for array in arrays:
            array[0] = most
        assert np.array_equal(summed(arrays, coding, np.empty(size, dtype)), np.sum(arrays, axis=0, dtype=dtype))
        for extreme in (least, most, -1):
            arrays = [np.full(size, extreme, dtype)] * workers
            assert np.array_equal(summed(arrays, coding, np.empty(size, dtype)), np.sum(arrays, axis=0, dtype=dtype))


def test_bytes_of_one_worker_arrive_unchanged() -> None:
    arrays = [np.zeros(1001, np.uint8) for _ in range(3)]
    arrays[1][:] = np.arange(1001) % 256
    assert np.array_equal(summed(arrays, Bytes(LANES), np.empty(1001, np.uint8)), arrays[1])


@pytest.mark.parametrize("row", range(3))
def test_target_gets_its_own_row(row: int) -> None:
    arrays = [np.arange(3 * 777, dtype=np.int64) * (rank + 1) for rank in range(3)]
    found = summed(arrays, Int64(LANES), np.empty(777, np.int64), begin=row * 777)
    assert np.array_equal(found, 6 * np.arange(row * 777, (row + 1) * 777))


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.integers(1, 64), st.lists(FLOATS, min_size=1, max_size=4), st.integers(0, 2**32 - 1), st.booleans())
def test_float_sums_are_within_the_documented_error(workers: int, own: list[float], seed: int, mean: bool) -> None:
    """Each addend is within 2**(h - 31) of the block's largest magnitude, and the sum is rounded once."""
    draws = np.random.default_rng(seed)
    arrays = [(np.array(own) * draws.uniform(-1, 1, len(own))).astype(np.float32) for _ in range(workers)]
    arrays[seed % workers][:] = own
    with np.errstate(over="ignore"):
        found = as_floats(arrays, mean=mean)
    largest = max(Fraction(abs(float(value))) for array in arrays for value in array)
    headroom = (workers - 1).bit_length()
    for at, value in enumerate(found.astype(np.float64)):
        exact = sum((Fraction(float(array[at])) for array in arrays), Fraction()) / (workers if mean else 1)
        bound = largest * Fraction(2) ** (headroom - 31) * (1 if mean else workers)
        if abs(exact) < Fraction(float(np.finfo(np.float32).max)):
            rounding = max(abs(exact) + bound, Fraction(2) ** -126) * Fraction(2) ** -24
            assert abs(Fraction(float(value)) - exact) <= bound + rounding


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 33, 64])
def test_largest_floats_do_not_overflow_a_lane(workers: int) -> None:
    """All workers have the largest value of one exponent in their lanes, with the same sign."""
    for value in (np.float32(2) - np.finfo(np.float32).eps, np.float32(2.0**-149), np.float32(2.0**-126)):
        for signed in (value, -value):
            with np.errstate(over="ignore"):
                found = as_floats([np.full(3, signed, np.float32)] * workers)
            assert np.array_equal(found, np.full(3, np.float64(signed) * workers).astype(np.float32))


@pytest.mark.parametrize("dtype", FLOATING)
def test_mean_is_divided_after_the_sum(dtype: str) -> None:
    arrays = [np.full(70, value).astype(dtype) for value in (1, 0, 0)]
    assert np.array_equal(as_floats(arrays, mean=True), np.full(70, 1 / 3).astype(dtype))


def test_each_block_has_its_own_exponent() -> None:
    array = np.repeat(np.array([1e30, 1e-30, 0, 1], np.float32), LANES)
    assert np.array_equal(as_floats([array, array]), 2 * array)
    assert list(exponents_of(array, LANES)) == [226, 27, 0, 127]


@pytest.mark.parametrize("largest", range(3))
def test_block_exponent_comes_from_the_worker_with_the_largest_number(largest: int) -> None:
    arrays = [np.full(5, 2.0 ** (20 * (rank == largest)), np.float32) for rank in range(3)]
    assert np.array_equal(as_floats(arrays), np.full(5, 2.0**20 + 2, np.float32))


def test_blocks_share_exponents_where_there_are_too_many() -> None:
    array = np.zeros(4 * (2 * EXPONENTS_MOST - 3), np.float32)
    array[-1], array[8] = 1, 4
    note = exponents_of(array, 4)
    assert (sharing(array.size // 4), len(note)) == (2, EXPONENTS_MOST - 1)
    assert (note[-1], note[1], sum(note)) == (127, 129, 256)
    coding = FixedPoint(4, array.size // 4, note, 1, 1)
    rows = array.reshape(-1, 4)
    assert np.array_equal(coding.decode(coding.encode(rows, 0), 0), rows)
