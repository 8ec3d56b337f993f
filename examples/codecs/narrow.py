"""A custom codec: 8-bit lanes whose step follows the mean magnitude alone, for gradients without outliers."""

import numpy as np

FRACTION_BITS = 40  # values are int64 in units of 2**-40


class Narrow:
    """Whole steps of 2**-scale, as many as n workers' sum leaves room for in 8 bits."""

    width, signed = 8, True

    def __init__(self, workers, rounding):
        self.limit = 127 // workers

    def scale(self, mean, largest):
        """Four times the mean magnitude fits; larger values are clipped, and stay with the worker."""
        steps = self.limit / np.maximum(4 * mean, 2.0**-41)
        return np.clip(np.frexp(steps)[1] - 1, 0, FRACTION_BITS).astype(np.int64)

    def encode(self, values, scale):
        """The nearest step towards zero."""
        shift = FRACTION_BITS - scale
        return np.clip(np.sign(values) * (np.abs(values) >> shift), -self.limit, self.limit).astype(np.int32)

    def decode(self, lanes, scale, count):
        """Steps add up, whoever's they are."""
        return lanes.astype(np.int64) << (FRACTION_BITS - scale)
