"""Codecs turn blocks of a gradient into narrow lanes that a switch can add, and back.

A new gradient is converted to int64 in units of 2**-FRACTION_BITS once.  From then on all sums and differences are
exact, so nothing is lost between the aggregated and the pending part (compression.ledger).  A lane's value is a whole
number of units.  The encoding error of rounding and clipping stays at the worker (error feedback, Seide et al. 2014;
Karimireddy et al. 2019).

This module knows nothing of packets (kernels.lanes packs lanes) and of schedules.  compression.registry finds codecs by
name; compression.codecs has the built-in codecs.
"""

from collections.abc import Mapping
from typing import Protocol, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Exponents, Fixed, Floats, Floats64, Integers, Values
from kofn_host.errors import CodecError, GradientError
from kofn_host.kernels.kernel import Weights, kernel
from kofn_host.kernels.lanes import pack, unpack_sums
from kofn_host.protocol.results import BlockResults

FRACTION_BITS = 40
"""Resolution of a worker's ledger: 2**-40, finer than float32's resolution for gradients above 2**-17."""

MAGNITUDE_MAX = 2.0**20
"""The largest accepted gradient element; it leaves a factor of 2**3 for residuals in int64."""

UNIT = 2.0**-FRACTION_BITS

Scale = TypeVar("Scale", Exponents, int | Exponents)
"""One exponent per block, or, where a function allows it, one exponent for all blocks."""

Counts = npt.NDArray[np.int64]
"""The number of workers' lanes in each block's sum."""


def check(gradient: Floats, first: int = 0) -> None:
    """Raise GradientError if an element is not finite or too large; `first`: the first element's number."""
    if (bad := kernel().first_bad(gradient, MAGNITUDE_MAX)) >= 0:
        raise GradientError(
            f"gradient element {first + bad} must be finite and at most 2**20 in magnitude, got {gradient.flat[bad]}"
        )


def statistics(values: Fixed) -> tuple[Floats64, Floats64]:
    """Return the mean and the largest magnitude of each block (B,), in the gradient's units, for Codec.scale()."""
    mean, largest = kernel().magnitudes(values)
    return mean * UNIT, largest * UNIT


class Codec(Protocol):
    """Turns values into lanes that a switch can add, and back.

    Decoding is linear: decode(a + b, scale, m + n) = decode(a, scale, m) + decode(b, scale, n), exactly.
    `compression.registry.check_codec` tests that.  A codec does not change its arguments.
    """

    @property
    def width(self) -> int:
        """Bits of a lane: 32, 16, 8, 4, or 1 for votes, whose sum is their count."""

    @property
    def signed(self) -> bool:
        """Whether a sum's lanes are two's complement; otherwise they are unsigned, like votes."""

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """Return each block's exponent (B,), from the mean and the largest magnitude of its values (B,).

        scale() must be a pure function: the same arguments give the same result on every worker.
        """

    def encode(self, values: Fixed, scale: int | Exponents) -> Values:
        """Return lanes of blocks (B, L), so small that all workers' sum fits a lane; `scale`: (B, 1) or a number."""

    def decode(self, lanes: Values, scale: int | Exponents, count: int | Counts) -> Fixed:
        """Return the values of sums of `count` workers' lanes, same shape; `scale`, `count`: (B, 1) or a number."""


class PackingCodec(Codec, Protocol):
    """A codec that native code can decode: lanes are steps of 2**-scale, or votes if not `signed`.

    `limit`: the largest magnitude of a lane, 0 for votes.  `by_chance`: whether encode() rounds stochastically; if not,
    native code can encode too: it rounds to the nearest step, and half a step is rounded up.
    """

    limit: int

    @property
    def by_chance(self) -> bool: ...

    def encode_packed(self, values: Fixed, scale: Exponents) -> bytes:
        """Apply encode() and pack() in one pass."""


def packs(codec: Codec) -> TypeGuard[PackingCodec]:
    """Return whether the codec's class itself has encode_packed(); a derived class may encode differently."""
    return "encode_packed" in vars(type(codec))


def largest_lanes(codecs: Mapping[int, Codec]) -> dict[int, int] | None:
    """Return the largest lane of each code, 0 for votes; None if native code cannot decode one of the codecs."""
    known = {code: codec.limit for code, codec in codecs.items() if packs(codec)}
    return known if len(known) == len(codecs) else None


def encode_packed(codec: Codec, values: Fixed, scale: Exponents) -> bytes:
    """Return blocks (B, L) as on the wire, `scale` (B, 1); encode and pack in one pass if the codec can."""
    if packs(codec):
        return codec.encode_packed(values, scale)
    return pack(codec.encode(values, scale), codec.width)


def average_packed(
    codec: Codec,
    results: BlockResults,
    scale: Exponents,
    count: Counts,
    factor: Floats64,
    *,
    weights: Weights,
    mean: Floats,
) -> Integers:
    """Decode sums of blocks of L values; write the values times `factor` to the blocks' places in `mean`, shape (N,).

    `scale`, `count`, `factor`: (B, 1).  Return the sum of each block's values times `weights` (L,), shape (B,).
    """
    sizes = sorted({*results.numbers("size").tolist()})
    if len(sizes) != 1:
        raise CodecError(f"all {len(results)} blocks must have one size, got {sizes} bytes")
    lanes = unpack_sums(results.all_values(), codec.width, len(weights), len(results), signed=codec.signed)
    total = codec.decode(lanes, scale, count)
    return kernel().averaged(total, results.blocks, factor, weights=weights, mean=mean)


def shift_of(scale: Scale) -> Scale:
    """Return how many bits of a value are below a lane's step; CodecError for a scale out of range."""
    least, most = (scale, scale) if isinstance(scale, int) else (scale.min(initial=0), scale.max(initial=0))
    if least < 0 or most > FRACTION_BITS:
        raise CodecError(f"scales must be 0 to {FRACTION_BITS}, got {least} to {most}")
    return FRACTION_BITS - scale


def exponent_of(steps: int, reach: Floats64, above: float) -> Exponents:
    """Return the scale at which `steps` steps equal `reach`, rounded up if the mantissa, 0.5 to 1, is at least `above`.

    With above = 1, the steps cover at least `reach`.  frexp is exact, so all workers find the same scale.
    """
    rest, exponent = np.frexp(steps / np.maximum(reach, UNIT / 2))
    found: Exponents = np.clip(exponent.astype(np.int64) - (rest < above), 0, FRACTION_BITS)
    return found
