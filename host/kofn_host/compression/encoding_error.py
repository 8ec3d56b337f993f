"""Predicts the encoding error of narrower lanes as a share of the gradient.

The estimate uses the magnitudes in the summary block (compression.summary_block).  It is bit-identical on every worker,
because it consists of products, quotients, square roots and sums in a fixed order.
"""

import numpy as np

from kofn_host.arrays import Floats64
from kofn_host.compression.codec import Codec
from kofn_host.compression.summary_block import Magnitudes


def expected_error(codec: Codec, magnitudes: Magnitudes) -> float:
    """Return the expected squared rounding error of blocks with these magnitudes, over their squared norm, 0 to 1.

    A small step has the squared error step**2 / 12 per value (Bennett 1948); with a large step, the values themselves
    are the error.  In between, the two combine like parallel resistors.  The values' mean square is assumed to be
    mean**1.5 * largest**0.5, the geometric mean of its bounds mean**2 and mean * largest.

    >>> from kofn_host.compression.codecs.fixed_point import FixedPoint
    >>> magnitudes = Magnitudes(mean=np.array([2.0**-8]), largest=np.array([2.0**-6]))
    >>> [round(expected_error(FixedPoint(workers=4, width=width), magnitudes), 4) for width in (16, 8, 4)]
    [0.0, 0.0026, 0.4]
    """
    step = np.ldexp(1.0, -codec.scale(magnitudes.mean, magnitudes.largest))
    square = magnitudes.mean * np.sqrt(magnitudes.mean * magnitudes.largest)
    rounding = step * step / 12
    total = _sum(square)
    return _sum(square * rounding / (square + rounding)) / total if total else 0.0


def _sum(values: Floats64) -> float:
    """Return the sum in index order, which np.sum() does not guarantee."""
    return float(np.cumsum(values)[-1])
