"""Fixed point: int32, int16, int8, int4, and all of these that leave room for the workers ("auto")."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from kofn.config.compress import Rounding, limit_of
from kofn.host.arrays import Exponents, Fixed, Floats64, Values
from kofn.host.compression.codec import FRACTION_BITS, UNIT, Counts, PackingCodec, exponent_of, shift_of
from kofn.host.errors import CodecError
from kofn.host.kernels.kernel import kernel
from kofn.host.kernels.lanes import WIDTHS, code_of

HEADROOM = 2.0**6
"""A gradient may be so many times as large as the mean of the iteration before until 32-bit lanes clip it; 22 bits are
left below for 4 workers, 18 for 64."""

STEPS_LEAST = 2.0**10
"""With fewer steps for its largest element a gradient does not fit the scale of the first iteration."""

TAIL = 12.0
"""What is larger than so many mean magnitudes (times the root of the largest lane) is clipped.  The least squared error
of a Laplace distribution asks for 2, but what is clipped comes late by many iterations, and training bears that badly;
what is rounded off is only sent when it has grown to half a step."""


class FixedPoint:
    """Whole steps of 2**-scale, as many as `workers` addends leave room for.

    32 bits have one scale, at which addends up to `gradient_range` fit, unless the job's follows its gradients
    (following()).  Narrower lanes follow the block's magnitudes.
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
            raise CodecError(f'rounding must be "nearest" or "stochastic", got "{rounding}"')
        self.exponent = min(FRACTION_BITS, math.floor(math.log2(limit_of(32, workers) / gradient_range)))
        """The scale of 32-bit lanes."""
        self._calls = 0 if rounding == "stochastic" else None
        kernel()  # loaded now, not while a gradient waits

    @property
    def by_chance(self) -> bool:
        return self._calls is not None

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """The finer of two steps: the least one that clips nothing, and one that clips at TAIL * sqrt(limit) means."""
        if self.width == 32:
            return np.full(mean.shape, self.exponent, np.int64)
        tail = exponent_of(self.limit, TAIL * math.sqrt(self.limit) * mean, math.sqrt(0.5))
        return np.maximum(exponent_of(self.limit, largest, 1.0), tail)

    def encode(self, values: Fixed, scale: int | Exponents) -> Values:
        seed, shift = self._seed(values), shift_of(scale)
        if seed is None:
            return kernel().round(values, shift, self.limit)
        return kernel().round_by_chance(values, shift, self.limit, seed)

    @staticmethod
    def decode(lanes: Values, scale: int | Exponents, count: int | Counts) -> Fixed:
        """A sum of steps, however many addends it has."""
        return kernel().spread(lanes, shift_of(scale))

    def encode_packed(self, values: Fixed, scale: Exponents) -> bytes:
        """encode() and pack() in one pass."""
        return kernel().encode(values, shift_of(scale), self.limit, self._seed(values), self.width)

    def _seed(self, values: Fixed) -> int | None:
        """32 bits for this call; None where nothing is left to chance."""
        if self._calls is None:
            return None
        self._calls += 1
        return (self._calls + _sample(values)) * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF


def following(codec: PackingCodec, largest: Floats64) -> Exponents:
    """Return the scale of 32-bit lanes (B,) for gradients whose largest magnitudes are expected to be these (B,).

    Its steps reach HEADROOM times as far.  All blocks have the same one: so a sum does not depend on which elements
    share a block.
    """
    most = largest.max(initial=0.0)
    if most < UNIT:
        return codec.scale(largest, largest)
    return np.full(largest.shape, exponent_of(codec.limit, HEADROOM * most, 1.0), np.int64)


def beginning(codec: PackingCodec, largest: Floats64) -> Exponents:
    """Return the scale of 32-bit lanes (B,) for the first gradient, whose own largest magnitudes are known alone (B,).

    It is the codec's own, unless the gradient does not fit it: then one that other workers will choose as well.
    """
    usual, most = codec.scale(largest, largest), largest.max(initial=0.0)
    if most == 0 or STEPS_LEAST <= most * 2.0 ** int(usual[0]) <= codec.limit:
        return usual
    return np.full_like(usual, exponent_of(codec.limit, 16 * most, 1.0) // 8 * 8)


def auto(*, workers: int, rounding: Rounding, gradient_range: float) -> Sequence[FixedPoint]:
    """Of every width that leaves room for the workers, widest first."""
    widths = [width for width in WIDTHS if limit_of(width, workers)]
    return [
        FixedPoint(workers=workers, width=width, rounding=rounding, gradient_range=gradient_range) for width in widths
    ]


int32, int16, int8, int4 = (partial(FixedPoint, width=width) for width in (32, 16, 8, 4))


def _too_narrow(width: int, workers: int) -> str:
    """What is wrong, and what would do."""
    enough = [str(wide) for wide in WIDTHS if limit_of(wide, workers)]
    return f"lanes of {width} bits leave none for a sum of {workers} workers: widths of {', '.join(enough)} bits do"


def _sample(values: Fixed) -> int:
    """A number that is another one for other values, from at most 128 of them."""
    flat = values.reshape(-1)
    return int(flat[:: max(1, flat.size // 64)].sum())
