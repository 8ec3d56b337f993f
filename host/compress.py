"""Fixed-point compression: float gradients to 32-bit lanes whose sum cannot overflow.

A gradient becomes int64 in units of 2**-FRACTION_BITS once, when it is computed; from there on every sum and
difference is exact, so that nothing can leak between what was counted and what is left (host.residual).  A block is
sent as round(value * 2**scale), clipped so that `workers` addends fit a lane; what rounding and clipping leave over
stays with the worker (error feedback, Seide et al. 2014; Karimireddy et al. 2019).
"""

import math

import numpy as np
import numpy.typing as npt

from host.errors import GradientError
from host.wire import Values

FRACTION_BITS = 40
"""Resolution of a worker's books: 2**-40, below float32's own for any gradient above 2**-17."""

MAGNITUDE_MAX = 2.0**20
"""Largest gradient element that is accepted; leaves 2**3 of room for residuals in int64."""

Fixed = npt.NDArray[np.int64]
"""Values in units of 2**-FRACTION_BITS."""


def to_fixed(gradient: npt.NDArray[np.float32]) -> Fixed:
    """A float gradient in units of 2**-40, same shape; GradientError when an element is not finite or too large."""
    largest = float(np.max(np.abs(gradient), initial=0.0))
    if not largest <= MAGNITUDE_MAX:
        element = int(np.argmax(~(np.abs(gradient) <= MAGNITUDE_MAX)))
        raise GradientError(
            f"gradient element {element} is {gradient.flat[element]}: finite, at most 2**20 in magnitude is allowed"
        )
    return np.rint(gradient.astype(np.float64) * 2.0**FRACTION_BITS).astype(np.int64)


class FixedPoint:
    """Encodes blocks for `workers` addends of magnitude up to `gradient_range` each.

    >>> codec = FixedPoint(workers=4, gradient_range=64.0)
    >>> codec.scale
    22
    """

    def __init__(self, *, workers: int, gradient_range: float) -> None:
        self.limit = (2**31 - 1) // workers
        """Largest magnitude of one addend: n of them fit a signed 32-bit lane."""
        self.scale = min(FRACTION_BITS, math.floor(math.log2(self.limit / gradient_range)))
        """Exponent of the values on the wire: an addend is round(value * 2**scale)."""

    def encode(self, values: Fixed, scale: int) -> Values:
        """Lanes of `values` at `scale`, rounded to nearest and clipped; same shape."""
        shift = FRACTION_BITS - scale
        rounded = (values + (1 << shift >> 1)) >> shift
        lanes: Values = np.clip(rounded, -self.limit, self.limit).astype(np.int32)
        return lanes

    @staticmethod
    def counted(lanes: Values, scale: int | Fixed) -> Fixed:
        """What lanes on the wire stand for, exactly; same shape.  `scale` may be an array that broadcasts."""
        return lanes.astype(np.int64) << (FRACTION_BITS - scale)

    @staticmethod
    def mean(total: Values, scale: int | Fixed, count: int | Fixed) -> npt.NDArray[np.float32]:
        """A result's sum over `count`; same shape, arguments broadcast."""
        mean: npt.NDArray[np.float32] = (total * (np.exp2(-np.float64(scale)) / count)).astype(np.float32)
        return mean
