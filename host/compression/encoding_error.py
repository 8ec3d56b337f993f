"""What narrower lanes cost: the share of a gradient that they are expected to leave over, before anything is encoded.

An estimate from the magnitudes that the summary block brings anyway (compression.summary_block), the same to the bit
on every worker: products, quotients, square roots and sums in a fixed order.  Knows nothing of links and of what is
gained.
"""

import numpy as np

from kofn.host.arrays import Floats64
from kofn.host.compression.codec import Codec
from kofn.host.compression.summary_block import Magnitudes


def expected_error(codec: Codec, magnitudes: Magnitudes) -> float:
    """Squared norm of the rounding error of blocks with these magnitudes over their own squared norm, 0 to 1.

    A step that is small against the values leaves over step**2 / 12 of each (Bennett 1948), one that is large leaves
    over the values themselves; between them both count as resistors side by side do.  The values' mean square is
    taken to be mean**1.5 * largest**0.5, the geometric mean of its bounds mean**2 and mean * largest.

    >>> from kofn.host.compression.codecs.fixed_point import FixedPoint
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
    """From the first to the last: np.sum() has an order of its own."""
    return float(np.cumsum(values)[-1])
