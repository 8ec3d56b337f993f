"""One bit per element: signs, which are counted as votes."""

import math

from kofn_host.arrays import Exponents, Fixed, Floats64, Values
from kofn_host.compression.codec import Counts, exponent_of, shift_of
from kofn_host.kernels.kernel import kernel
from kofn_host.kernels.lanes import VOTES

VOTE = 1.6
"""A vote's step in mean magnitudes.  With 1 the encoding error of one iteration is least, but large values are sent
very late.  Above 2 error feedback stops shrinking the residual."""


class OneBit:
    """Votes: 1 for values >= 0, else 0; they stand for plus or minus one step (Seide et al. 2014)."""

    width = VOTES
    signed = False
    limit = 0
    by_chance = False

    def __init__(self) -> None:
        kernel()

    def scale(self, mean: Floats64, largest: Floats64) -> Exponents:
        """Return the scale whose step is nearest to VOTE times the mean magnitude."""
        return exponent_of(1, VOTE * mean, math.sqrt(0.5))

    def encode(self, values: Fixed, scale: int | Exponents) -> Values:
        return kernel().votes(values)

    @staticmethod
    def decode(lanes: Values, scale: int | Exponents, count: int | Counts) -> Fixed:
        """Return the positive minus the negative votes, in steps."""
        return kernel().spread(lanes, shift_of(scale), count)

    def encode_packed(self, values: Fixed, scale: Exponents) -> bytes:
        """Apply encode() and pack() in one pass."""
        return kernel().encode_votes(values)


onebit = OneBit
