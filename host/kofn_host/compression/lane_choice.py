"""The lanes of a worker's contributions: the plan's, or narrower lanes that a slot or the link's rate asks for."""

from collections.abc import Iterable

from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.plan import Plan
from kofn_host.compression.rate import RateEstimator
from kofn_host.compression.summary_block import Magnitudes
from kofn_host.kernels.lanes import code_of


class LaneChoice:
    """Chooses the lanes of each iteration.

    With a `rate` the ratio follows the link's rate; without a `rate` the ratio is fixed.
    """

    def __init__(self, coding: JobCoding, rate: RateEstimator | None) -> None:
        self.rate = rate
        self.current = self.target = coding.planner.first().lanes
        """Codes of lanes: blocks are encoded in `current`; Encoder.narrow() changes unsent blocks to `target`."""
        self.wish = coding.planner.ratio
        """The share of the gradient's bytes that the link has time for."""
        self.rate_ratio: float | None = None
        """The ratio c (rate.compression_ratio) at this iteration's first measured rate."""
        self._codecs, self._planner = coding.codecs, coding.planner
        self._block_bytes, self._summary = 4 * coding.layout.elements, coding.layout.summary
        self._narrowest = min(coding.planner.widths)  # bits of the narrowest acceptable lanes in this iteration

    def begin(self, plan: Plan) -> None:
        """Begin the iteration of this plan."""
        self.current = self.target = plan.lanes
        self.rate_ratio = None
        if self.rate is not None:
            self.rate.begin(len(plan.blocks) * self._block_bytes)
            self._update_wish(self.rate)

    def bear(self, expected: Magnitudes | None) -> None:
        """Find the narrowest lanes whose error is acceptable for a gradient of these magnitudes."""
        if self.rate is not None:
            self._narrowest = self._planner.narrowest(expected)

    def hear(self, codes: Iterable[int]) -> None:
        """Narrow the target to the narrowest lanes (codes) that slots or other workers use."""
        if len(self._codecs) > 1:
            self.target = max([self.target, *(code for code in codes if code in self._codecs)])

    def answered(self, rate: RateEstimator, block: int, size: int, now: float) -> None:
        """Update the rate by the answer to a contribution of `size` bytes; narrow the target by the rate."""
        gradient_bytes = 0 if block == self._summary else self._block_bytes
        rate.answered(now, wire_bytes=FRAME_BYTES + HEADER_BYTES + size, gradient_bytes=gradient_bytes)
        self._update_wish(rate)
        if rate.measured:
            self.rate_ratio = rate.ratio if self.rate_ratio is None else self.rate_ratio
            self.target = max(self.target, code_of(max(self._planner.asked(rate.rest), self._narrowest)))

    def _update_wish(self, rate: RateEstimator) -> None:
        """Wish for the share that the rate allows; before an iteration's first rate, the previous rate counts."""
        self.wish = min(self._planner.ratio, rate.wish)
