"""Measurements of the encoding of each iteration's gradient: errors and losses."""

import math
from dataclasses import dataclass

import numpy as np

from kofn_host.arrays import Exponents, Fixed, Floats, Integers
from kofn_host.compression import summary_block as summary
from kofn_host.compression.codec import UNIT, Codec, packs
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.plan import Plan
from kofn_host.compression.residual import Residual
from kofn_host.compression.summary_block import Magnitudes
from kofn_host.kernels.lanes import VOTES, width_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """Measurements of one iteration's gradient; norms are in the gradient's units, and large norms come from samples.

    `ratio`: the plan's share of the float32 gradient's bytes; `wire_bytes`: bytes of sent values, including
    retransmissions; `wire_ratio`: `wire_bytes` divided by the float32 gradient's bytes; `width`: bits of the planned
    lanes; `blocks`: number of the plan's blocks; `error_norm`: L2 norm of the encoding error of these blocks;
    `residual_norm`: L2 norm of all pending values after the iteration.  `refused_width`: bits of the narrower lanes
    that the ratio asked for, but whose error would have been too large; `refused_error`: that error's share of the
    gradient's squared norm; both are None if the lanes are as asked for.  `rate_ratio`: c of compression_ratio() at the
    first measured rate of this iteration; None if no rate was measured.  `lost_norm`: L2 norm of the rounding of
    residuals that are kept in fewer bits; None if residuals are exact.  `expanding`: the share of blocks whose votes'
    step is too large for the residual to shrink; None without votes or agreed steps.  `misfits`: the share of nonzero
    elements that became 0, or were clipped, in 32-bit lanes.
    """

    ratio: float
    wire_bytes: int
    wire_ratio: float
    width: int
    blocks: int
    error_norm: float
    residual_norm: float
    refused_width: int | None = None
    refused_error: float | None = None
    rate_ratio: float | None = None
    lost_norm: float | None = None
    expanding: float | None = None
    misfits: float = 0.0


class EncodingMeter:
    """Measures encoding errors, and estimates large errors from samples; `residual`: the pending values."""

    def __init__(self, coding: JobCoding, residual: Residual) -> None:
        self._layout, self._planner, self._residual = coding.layout, coding.planner, residual
        self.error: float | None = None
        """The squared L2 norm of the encoding error; None: nothing was encoded in this iteration."""
        self._expanding: float | None = None
        self._lost_norm = residual.lost_norm

    def add(self, left_over: Fixed, blocks: int) -> None:
        """Add the encoding error of `blocks` blocks, given a sample of that error."""
        self.error = (self.error or 0.0) + _squares(left_over, blocks * self._layout.elements)

    def look_at_steps(self, lanes: int, scale: Exponents, blocks: Integers, magnitudes: Magnitudes | None) -> None:
        """Count the plan's blocks of votes whose residual does not shrink.

        A residual shrinks if 0 < step < 2 mean: then |x - step sign(x)|^2 = |x|^2 - n step (2 mean - step) < |x|^2.
        A block of zeros does not count.
        """
        self._expanding = None
        if width_of(lanes) == VOTES and magnitudes is not None:
            mean = magnitudes.mean[blocks]
            grows = (2.0 ** -scale[blocks] >= 2 * mean) & (mean > 0)
            self._expanding = float(grows.mean())

    def encoding(self, plan: Plan, wire_bytes: int, rate_ratio: float | None, misfits: float) -> Encoding:
        """Return the measurements of the iteration that ends."""
        assert self.error is not None
        refused_width, refused_error = self._planner.refused(plan) or (None, None)
        return Encoding(
            ratio=plan.ratio / summary.ONE,
            wire_bytes=wire_bytes,
            wire_ratio=wire_bytes / (4 * self._layout.blocks * self._layout.elements),
            width=width_of(plan.lanes),
            blocks=len(plan.blocks),
            error_norm=math.sqrt(self.error),
            residual_norm=math.sqrt(_squares(self._residual.sampled, self._residual.blocks * self._residual.elements)),
            refused_width=refused_width,
            refused_error=refused_error,
            rate_ratio=rate_ratio,
            lost_norm=self._lost(),
            expanding=self._expanding,
            misfits=misfits,
        )

    def _lost(self) -> float | None:
        """Return the norm of losses since the last call; None if residuals are exact."""
        before, self._lost_norm = self._lost_norm, self._residual.lost_norm
        return None if self._residual.exact else math.sqrt(max(0.0, self._lost_norm**2 - before**2))


def misfits_of(sample: Floats, codec: Codec, scale: Exponents) -> float:
    """Return the share of a sample's nonzero elements that are clipped or become 0 at this scale."""
    magnitudes = np.abs(sample)
    nonzero = np.count_nonzero(magnitudes)
    least, most = UNIT, math.inf
    if packs(codec) and codec.width == 32:
        least = 2.0 ** -int(scale[0])
        most = codec.limit * least
    below = np.count_nonzero(magnitudes < least / 2) - (magnitudes.size - nonzero)
    return (below + np.count_nonzero(magnitudes > most)) / nonzero if nonzero else 0.0


def _squares(some: Fixed, size: int) -> float:
    """Estimate the sum of squares of `size` values from a sample of them, in units of the gradient."""
    return float(np.square(some * UNIT).sum()) * size / some.size if some.size else 0.0
