"""Codecs: how blocks of a gradient become narrow lanes that a switch can add, and back.

A gradient becomes int64 in units of 2**-FRACTION_BITS once, when it is computed; from there on every sum and
difference is exact, so that nothing can leak between what was aggregated and what is left (compression.ledger).  What a
lane stands for is a whole number of such units: what rounding and clipping leave over stays with the worker (error
feedback, Seide et al. 2014; Karimireddy et al. 2019).

Knows nothing of packets (kernels.lanes packs lanes) and of what is sent when.  compression.registry finds codecs by
name; those that ship are in compression.codecs.
"""

from collections.abc import Mapping
from typing import Protocol, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Exponents, Fixed, Floats, Floats64, Integers, Values
from kofn.host.errors import CodecError, GradientError
from kofn.host.kernels.kernel import Weights, kernel
from kofn.host.kernels.lanes import pack, unpack_sums
from kofn.host.protocol.results import BlockResults

FRACTION_BITS = 40
"""Resolution of a worker's ledger: 2**-40, below float32's own for any gradient above 2**-17."""

MAGNITUDE_MAX = 2.0**20
"""Largest gradient element that is accepted; leaves 2**3 of room for residuals in int64."""

UNIT = 2.0**-FRACTION_BITS

Scale = TypeVar("Scale", Exponents, int | Exponents)
"""One exponent for each block, or where it says so one for all."""

Counts = npt.NDArray[np.int64]
"""How many workers' lanes are in each block's sum."""


def check(gradient: Floats, first: int = 0) -> None:
    """GradientError where an element is not finite or too large; `first`: the first one's number."""
    if (bad := kernel().first_bad(gradient, MAGNITUDE_MAX)) >= 0:
        raise GradientError(
            f"gradient element {first + bad} must be finite and at most 2**20 in magnitude, got {gradient.flat[bad]}"
        )


def statistics(values: Fixed) -> tuple[Floats64, Floats64]:
    """Mean and largest magnitude of each block (B,), in the gradient's units: what Codec.scale() is asked with."""
    mean, largest = kernel().magnitudes(values)
    return mean * UNIT, largest * UNIT


class Codec(Protocol):
    """How values become lanes that a switch can add.

    A sum is worth what its addends are worth: decode(a + b, scale, m + n) = decode(a, scale, m) + decode(b, scale, n),
    exactly.  `compression.registry.check_codec` tries that.  Arrays that are passed in stay as they are.
    """

    @property
    def width(self) -> int:
        """Bits of a lane: 32, 16, 8, 4, or 1: a vote.  The sum of votes is their count."""

    @property
    def signed(self) -> bool:
        """Whether a sum's lanes are two's complement; else they are unsigned, as votes are."""

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """Each block's exponent (B,), from the mean and the largest magnitude of its values (B,).

        The same on every worker that asks with the same numbers: no chance, no memory.
        """

    def encode(self, values: Fixed, scale: int | Exponents) -> Values:
        """Lanes of blocks (B, L), each so small that all workers' sum fits a lane; `scale`: (B, 1) or one number."""

    def decode(self, lanes: Values, scale: int | Exponents, count: int | Counts) -> Fixed:
        """What sums of `count` workers' lanes stand for, same shape; `scale` and `count`: (B, 1) or one number."""


class PackingCodec(Codec, Protocol):
    """A codec whose lanes native code can decode: whole steps of 2**-scale, or votes where they are not `signed`.

    `limit`: the largest magnitude of a lane, 0 of votes.  `by_chance`: whether encode() leaves anything to chance; else
    native code can encode as well, to the nearest step, half a step up.
    """

    limit: int

    @property
    def by_chance(self) -> bool: ...

    def encode_packed(self, values: Fixed, scale: Exponents) -> bytes:
        """encode() and pack() in one pass."""


def packs(codec: Codec) -> TypeGuard[PackingCodec]:
    """Whether its class says so itself; one derived from that may code in another way."""
    return "encode_packed" in vars(type(codec))


def largest_lanes(codecs: Mapping[int, Codec]) -> dict[int, int] | None:
    """Of each code, 0 where lanes are votes; None where native code cannot decode one of them."""
    known = {code: codec.limit for code, codec in codecs.items() if packs(codec)}
    return known if len(known) == len(codecs) else None


def encode_packed(codec: Codec, values: Fixed, scale: Exponents) -> bytes:
    """Blocks (B, L) as on the wire, `scale` (B, 1), in one pass where the codec has that."""
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
    """What sums of blocks of L values stand for, times `factor`, to the blocks' places in `mean`, shape (N,).

    `scale`, `count`, `factor`: (B, 1).  Returns each block's sum of these values times `weights` (L,), shape (B,).
    """
    sizes = sorted({*results.numbers("size").tolist()})
    if len(sizes) != 1:
        raise CodecError(f"{len(results)} blocks of {sizes} bytes: all must have the same")
    lanes = unpack_sums(results.all_values(), codec.width, len(weights), len(results), signed=codec.signed)
    total = codec.decode(lanes, scale, count)
    return kernel().averaged(total, results.blocks, factor, weights=weights, mean=mean)


def shift_of(scale: Scale) -> Scale:
    """Bits of a value below a step; CodecError for a scale that no block has."""
    least, most = (scale, scale) if isinstance(scale, int) else (scale.min(initial=0), scale.max(initial=0))
    if least < 0 or most > FRACTION_BITS:
        raise CodecError(f"scales must be 0 to {FRACTION_BITS}, got {least} to {most}")
    return FRACTION_BITS - scale


def exponent_of(steps: int, reach: Floats64, above: float) -> Exponents:
    """The scale at which `steps` steps reach so far: rounded up where the rest, 0.5 to 1, is at least `above`.

    With above = 1 they reach at least so far.  frexp is exact: all workers find the same.
    """
    rest, exponent = np.frexp(steps / np.maximum(reach, UNIT / 2))
    found: Exponents = np.clip(exponent.astype(np.int64) - (rest < above), 0, FRACTION_BITS)
    return found
