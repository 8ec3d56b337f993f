"""Codecs: how blocks of a gradient become narrow lanes that a switch can add, and back.

A gradient becomes int64 in units of 2**-FRACTION_BITS once, when it is computed; from there on every sum and
difference is exact, so that nothing can leak between what was counted and what is left (host.residual).  What a lane
stands for is a whole number of such units: what rounding and clipping leave over stays with the worker (error
feedback, Seide et al. 2014; Karimireddy et al. 2019).

Knows nothing of packets (host.lanes packs lanes) and of what is sent when.  host.codecs finds codecs by name.
"""

import math
from collections.abc import Sequence
from typing import Protocol, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from host.errors import CodecError, GradientError
from host.kernel import Floats32, Floats64, kernel, move
from host.lanes import WIDTHS, code_of, pack, unpack
from host.wire import Values
from run.compression import Rounding, limit_of

FRACTION_BITS = 40
"""Resolution of a worker's books: 2**-40, below float32's own for any gradient above 2**-17."""

MAGNITUDE_MAX = 2.0**20
"""Largest gradient element that is accepted; leaves 2**3 of room for residuals in int64."""

UNIT = 2.0**-FRACTION_BITS

Fixed = npt.NDArray[np.int64]
"""Values in units of 2**-FRACTION_BITS."""

Exponents = npt.NDArray[np.int64]
"""Of each block: one step of a lane stands for 2**-exponent, 0 to FRACTION_BITS."""

Integers = npt.NDArray[np.int64]

Scale = TypeVar("Scale", Exponents, int | Exponents)
"""One exponent for each block, or where it says so one for all."""

Counts = npt.NDArray[np.int64]
"""How many workers' lanes are in each block's sum."""

TAIL = 12.0
"""What is larger than so many mean magnitudes (times the root of the largest lane) is clipped.  The least squared error
of a Laplace distribution asks for 2, but what is clipped comes late by many iterations, and training bears that badly;
what is rounded off is only sent when it has grown to half a step."""

VOTE = 1.6
"""A vote's step in mean magnitudes.  1 leaves the least over at once, but then large values are far behind; with more
than 2 error feedback no longer shrinks what is left over."""


def to_fixed(gradient: Floats32) -> Fixed:
    """A gradient in units of 2**-40, same shape; GradientError as check()."""
    check(gradient)
    return kernel().fix(gradient, 1 / UNIT)


def enter(gradient: Floats32, rows: Integers, valid: Integers, gradients: Fixed, pending: Fixed) -> None:
    """to_fixed() of rows of a good gradient, entered as Kernel.enter has it."""
    kernel().enter(gradient, 1 / UNIT, rows, valid, gradients, pending)


def check(gradient: Floats32) -> None:
    """GradientError where an element is not finite or too large."""
    if (bad := kernel().first_bad(gradient, MAGNITUDE_MAX)) >= 0:
        raise GradientError(
            f"gradient element {bad} is {gradient.flat[bad]}: finite, at most 2**20 in magnitude is allowed"
        )


def statistics(values: Fixed) -> tuple[Floats64, Floats64]:
    """Mean and largest magnitude of each block (B,), in the gradient's units: what Codec.scale() is asked with."""
    mean, largest = kernel().magnitudes(values)
    return mean * UNIT, largest * UNIT


class Codec(Protocol):
    """How values become lanes that a switch can add.

    A sum is worth what its addends are worth: decode(a + b, scale, m + n) = decode(a, scale, m) + decode(b, scale, n),
    exactly.  `host.codecs.check_codec` tries that.  Arrays that are passed in stay as they are.
    """

    @property
    def width(self) -> int:
        """Bits of a lane: 32, 16, 8 or 4."""

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


class FixedPoint:
    """Whole steps of 2**-scale, as many as `workers` addends leave room for.

    32 bits have one scale for ever: addends up to `gradient_range` fit.  Narrower lanes follow the block's magnitudes.
    `stochastic` rounds up or down by chance so that the mean is the value; every call draws anew, from the values and
    the number of the call, so that two runs are the same.

    >>> codec = FixedPoint(workers=4, width=8)
    >>> lanes = codec.encode(np.array([[3 << 40, -1 << 40]]), 3)
    >>> lanes.tolist(), codec.decode(lanes, 3, 1).tolist() == [[3 << 40, -1 << 40]]
    ([[24, -8]], True)
    """

    signed = True

    def __init__(
        self, *, workers: int, width: int = 32, rounding: Rounding = "nearest", gradient_range: float = 64.0
    ) -> None:
        code_of(width)
        self.width = width
        self.limit = limit_of(width, workers)
        """Largest magnitude of one addend: n of them fit a signed lane."""
        if not self.limit:
            raise CodecError(_too_narrow(width, workers))
        if rounding not in ("nearest", "stochastic"):
            raise CodecError(f'rounding is "{rounding}": "nearest" and "stochastic" are allowed')
        self.exponent = min(FRACTION_BITS, math.floor(math.log2(limit_of(32, workers) / gradient_range)))
        """The scale of 32-bit lanes."""
        self._calls = 0 if rounding == "stochastic" else None
        kernel()  # loaded now, not while a gradient waits

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """The finer of two steps: the least one that clips nothing, and one that clips at TAIL * sqrt(limit) means."""
        if self.width == 32:
            return np.full(mean.shape, self.exponent, np.int64)
        tail = _exponent(self.limit, TAIL * math.sqrt(self.limit) * mean, math.sqrt(0.5))
        return np.maximum(_exponent(self.limit, largest, 1.0), tail)

    def encode(self, values: Fixed, scale: int | Exponents) -> Values:
        """Rounded and clipped."""
        seed, shift = self._seed(values), _shift(scale)
        if seed is None:
            return kernel().round(values, shift, self.limit)
        return kernel().round_by_chance(values, shift, self.limit, seed)

    @staticmethod
    def decode(lanes: Values, scale: int | Exponents, count: int | Counts) -> Fixed:
        """A sum of steps, however many addends it has."""
        return kernel().spread(lanes, _shift(scale))

    def encode_packed(self, values: Fixed, scale: Exponents, keep: Values | None) -> bytes:
        """encode() and pack() in one pass."""
        return kernel().encode(values, _shift(scale), self.limit, self._seed(values), self.width, keep)

    def _seed(self, values: Fixed) -> int | None:
        """32 bits for this call; None where nothing is left to chance."""
        if self._calls is None:
            return None
        self._calls += 1
        return (self._calls + _sample(values)) * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF


class OneBit:
    """Votes: 1 for values of 0 and more, else 0; each stands for plus or minus one step.

    Up to 15 votes fit lanes of 4 bits, up to 255 lanes of 8.  (Seide et al. 2014.)
    """

    signed = False

    def __init__(self, *, workers: int) -> None:
        self.width = 4 if workers <= 15 else 8
        kernel()

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """The step nearest to VOTE times the mean magnitude."""
        return _exponent(1, VOTE * mean, math.sqrt(0.5))

    def encode(self, values: Fixed, scale: int | Exponents) -> Values:
        """The values' signs."""
        return kernel().votes(values)

    @staticmethod
    def decode(lanes: Values, scale: int | Exponents, count: int | Counts) -> Fixed:
        """Votes for plus less votes for minus, in steps."""
        return kernel().spread(lanes, _shift(scale), count)

    def encode_packed(self, values: Fixed, scale: Exponents, keep: Values | None) -> bytes:
        """encode() and pack() in one pass."""
        return kernel().encode_votes(values, self.width, keep)


def _ours(codec: Codec) -> TypeGuard[FixedPoint | OneBit]:
    """Whether the kernel knows it; one derived from these may code in another way."""
    return type(codec) is FixedPoint or type(codec) is OneBit


def encode_packed(codec: Codec, values: Fixed, scale: Exponents, keep: Values | None = None) -> bytes:
    """Blocks (B, L) as on the wire, `scale` (B, 1), in one pass where that can be; their lanes into `keep` as well."""
    if _ours(codec):
        return codec.encode_packed(values, scale, keep)
    lanes = codec.encode(values, scale)
    if keep is not None:
        keep[...] = lanes
    return pack(lanes, codec.width)


def average_packed(
    codec: Codec,
    blocks: Sequence[bytes],
    scale: Exponents,
    count: Counts,
    factor: Floats64,
    *,
    total: Fixed,
    mean: Floats32,
) -> None:
    """What the sums of blocks from the wire stand for to `total`, that times `factor` to `mean`, both (B, L).

    `scale`, `count`, `factor`: (B, 1).
    """
    size = total.shape[1] * codec.width // 8
    if {*map(len, blocks)} != {size} or len(blocks) != len(total):
        raise CodecError(
            f"{len(blocks)} blocks of {sorted({*map(len, blocks)})} bytes: {len(total)} of {size} bytes are needed"
        )
    if _ours(codec):
        shift, votes = _shift(scale), None if codec.signed else count
        kernel().average(blocks, shift, factor, codec.width, signed=codec.signed, votes=votes, total=total, mean=mean)
    else:
        lanes = unpack(b"".join(blocks), codec.width, signed=codec.signed)
        total[...] = codec.decode(lanes.reshape(total.shape), scale, count)
        mean[...] = kernel().scaled(total, factor)


def count_sent(
    codec: Codec, lanes: Values, scale: Exponents, rows: Integers, valid: Integers, counted: Fixed, pending: Fixed
) -> None:
    """move() of host.kernel of what rows of lanes (B, L) stand for at scales (N,), in one pass where it can be."""
    if _ours(codec):
        kernel().count(lanes, rows, FRACTION_BITS - scale, valid, counted, pending, votes=not codec.signed)
    else:
        move(codec.decode(lanes[rows], scale[:, None], 1), rows, valid, counted, pending)


def _shift(scale: Scale) -> Scale:
    """Bits of a value below a step; CodecError for a scale that no block has."""
    least, most = (scale, scale) if isinstance(scale, int) else (scale.min(initial=0), scale.max(initial=0))
    if least < 0 or most > FRACTION_BITS:
        raise CodecError(f"a scale of {least} to {most}: 0 to {FRACTION_BITS} are allowed")
    return FRACTION_BITS - scale


def _too_narrow(width: int, workers: int) -> str:
    """What is wrong, and what would do."""
    enough = [str(wide) for wide in WIDTHS if limit_of(wide, workers)]
    return f"lanes of {width} bits leave none for a sum of {workers} workers: widths of {', '.join(enough)} bits do"


def _exponent(steps: int, reach: Floats64, above: float) -> Exponents:
    """The scale at which `steps` steps reach so far: rounded up where the rest, 0.5 to 1, is at least `above`.

    With above = 1 they reach at least so far.  frexp is exact: all workers find the same.
    """
    rest, exponent = np.frexp(steps / np.maximum(reach, UNIT / 2))
    found: Exponents = np.clip(exponent.astype(np.int64) - (rest < above), 0, FRACTION_BITS)
    return found


def _sample(values: Fixed) -> int:
    """A number that is another one for other values, from at most 128 of them."""
    flat = values.reshape(-1)
    return int(flat[:: max(1, flat.size // 64)].sum())
