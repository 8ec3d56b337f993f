"""Fixed-point codecs: int32, int16, int8, int4, and "auto", which is all of them that leave room for the workers."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from kofn_common.config.compress import Rounding, limit_of
from kofn_common.wire.packet import WIDTHS
from kofn_host.arrays import Exponents, Fixed, Floats64, Values
from kofn_host.compression.codec import FRACTION_BITS, UNIT, Counts, PackingCodec, exponent_of, shift_of
from kofn_host.errors import CodecError
from kofn_host.kernels.kernel import kernel
from kofn_host.kernels.lanes import code_of

HEADROOM = 2.0**6
"""32-bit lanes clip a gradient that is HEADROOM times larger than the previous iteration's mean.  22 bits are left for
that mean with 4 workers, 18 bits with 64."""

STEPS_LEAST = 2.0**10
"""The codec's own scale suits the first iteration if the gradient's largest element is at least so many steps."""

TAIL = 12.0
"""Values above TAIL mean magnitudes (times the square root of the largest lane) are clipped.  2 would minimise the
squared error of a Laplace distribution, but the clipped part is sent many iterations later, which harms training; a
rounded part is sent once it has grown to half a step."""


class FixedPoint:
    """Whole steps of 2**-scale, as many as `workers` addends leave room for.

    32-bit lanes have one scale, at which addends up to `gradient_range` fit, unless the job's scale follows its
    gradients (following()).  The scale of narrower lanes follows the block's magnitudes.
    `stochastic` rounding keeps the mean.  A call's seed depends on the values and on the number of the call, so that
    runs are reproducible.

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
        """The largest magnitude of an addend: the sum of `workers` addends fits a signed lane."""
        if not self.limit:
            raise CodecError(_too_narrow(width, workers))
        if rounding not in ("nearest", "stochastic"):
            raise CodecError(f'rounding must be "nearest" or "stochastic", got "{rounding}"')
        self.exponent = min(FRACTION_BITS, math.floor(math.log2(limit_of(32, workers) / gradient_range)))
        """The scale of 32-bit lanes."""
        self._calls = 0 if rounding == "stochastic" else None
        kernel()  # load it now, not while a gradient waits

    @property
    def by_chance(self) -> bool:
        return self._calls is not None

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """Return the finer of two scales: one that clips nothing, and one that clips at TAIL * sqrt(limit) means."""
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
        """Decode a sum of steps, for any number of addends."""
        return kernel().spread(lanes, shift_of(scale))

    def encode_packed(self, values: Fixed, scale: Exponents) -> bytes:
        """Apply encode() and pack() in one pass."""
        return kernel().encode(values, shift_of(scale), self.limit, self._seed(values), self.width)

    def _seed(self, values: Fixed) -> int | None:
        """Return a 32-bit seed for this call; None if rounding is not stochastic."""
        if self._calls is None:
            return None
        self._calls += 1
        return (self._calls + _sample(values)) * 0x9E3779B97F4A7C15 >> 32 & 0xFFFFFFFF


def following(codec: PackingCodec, largest: Floats64) -> Exponents:
    """Return the scale of 32-bit lanes (B,) for gradients with these expected largest magnitudes (B,).

    The scale leaves a headroom of HEADROOM.  All blocks have the same scale, so that sums do not depend on the layout.
    """
    most = largest.max(initial=0.0)
    if most < UNIT:
        return codec.scale(largest, largest)
    return np.full(largest.shape, exponent_of(codec.limit, HEADROOM * most, 1.0), np.int64)


def beginning(codec: PackingCodec, largest: Floats64) -> Exponents:
    """Return the scale of 32-bit lanes (B,) for the first gradient; only this worker's magnitudes (B,) are known.

    The result is the codec's own scale if the gradient fits.  Otherwise the result is a coarsely rounded scale, which
    other workers are likely to choose too.
    """
    usual, most = codec.scale(largest, largest), largest.max(initial=0.0)
    if most == 0 or STEPS_LEAST <= most * 2.0 ** int(usual[0]) <= codec.limit:
        return usual
    return np.full_like(usual, exponent_of(codec.limit, 16 * most, 1.0) // 8 * 8)


def auto(*, workers: int, rounding: Rounding, gradient_range: float) -> Sequence[FixedPoint]:
    """Return a codec for each width that leaves room for the workers, widest first."""
    widths = [width for width in WIDTHS if limit_of(width, workers)]
    return [
        FixedPoint(workers=workers, width=width, rounding=rounding, gradient_range=gradient_range) for width in widths
    ]


int32, int16, int8, int4 = (partial(FixedPoint, width=width) for width in (32, 16, 8, 4))


def _too_narrow(width: int, workers: int) -> str:
    """Return an error message with the possible widths."""
    enough = [str(wide) for wide in WIDTHS if limit_of(wide, workers)]
    return f"lanes of {width} bits are too narrow for a sum of {workers} workers: use {', '.join(enough)} bits"


def _sample(values: Fixed) -> int:
    """Return a number that depends on up to 128 of the values."""
    flat = values.reshape(-1)
    return int(flat[:: max(1, flat.size // 64)].sum())
