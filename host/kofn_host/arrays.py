"""The types of the arrays that a worker's parts exchange, and their copies and fingerprints."""

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Floats = npt.NDArray[np.float32]
"""Gradients, means, parameters."""

Floats64 = npt.NDArray[np.float64]

Integers = npt.NDArray[np.int64]

Fixed = npt.NDArray[np.int64]
"""Values as whole numbers of the ledger's unit, which is 2**-40 in the gradient's units (`codec.FRACTION_BITS`)."""

Exponents = npt.NDArray[np.int64]
"""Each block's exponent: one step of a lane stands for 2**-exponent."""

Values = npt.NDArray[np.int32]
"""Lanes of any width in host byte order: `kernels.lanes` packs them."""

Arrays = dict[str, npt.NDArray[np.generic]]
"""Arrays of a part's state, by name."""


def copied(arrays: Arrays, into: Arrays) -> Arrays:
    """Return a copy of arrays, in the memory of `into` if this memory fits: allocation takes several times longer."""
    found: Arrays = {}
    for name, array in arrays.items():
        place = into.get(name)
        if place is None or (place.shape, place.dtype) != (array.shape, array.dtype):
            place = np.frombuffer(in_pages(array.nbytes), array.dtype, array.size).reshape(array.shape)
        np.copyto(place, array)
        found[name] = place
    return found


def in_pages(size: int) -> memoryview:
    """Return new, zeroed memory of at least this many bytes that begins on a page, as direct writes need."""
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)


def fitting(given: Arrays, name: str, wanted: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return the array of this name; ValueError unless shape and dtype equal those of `wanted`."""
    found = given.get(name)
    if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        what = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise ValueError(f"{name} must be {wanted.dtype} {wanted.shape}, got {what}")
    return found


def fingerprint(*parameters: npt.NDArray[Any]) -> str:
    """Return a 64-bit hash of the parameters' bytes: bit-identical replicas have the same hash.

    Several arrays have the hash of their concatenation.
    """
    found = xxhash.xxh3_64()
    for part in parameters:
        found.update(part.data)
    return found.hexdigest()
