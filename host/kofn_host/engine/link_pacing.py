"""Paces a worker's packets at the rate of its link, if the link is slower than the other workers' links.

Packets that wait in this host can be overtaken by heavier ones, and dropped once the block is answered.  Packets that
wait in the link cannot: a link that is too slow for a gradient an iteration would fill with gradients that come too
late, and each later gradient would wait behind them.
"""

from collections.abc import Callable
from typing import NamedTuple

from kofn_common.rpc import kofn_pb2
from kofn_host.compression.plan import Plan
from kofn_host.engine.pacing_rate import PacingRate, packet_bytes
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.link_probe import LinkWait

EMPTY = 0.02
"""The largest wait in a link that holds no packets of this worker, as a part of the time of a gradient in the link."""

FREE = 0.95
"""The part of the link's rate at which packets leave: the link then holds no packets."""

NOISE_S = 1e-3
"""A wait behind no packets that is only the noise of timers and schedulers."""

GROWTH = 1.03
"""The factor by which the rate grows with each probe, as long as the link holds no packets."""

FASTER_GROWTH = 1.1
"""The factor while the link is becoming faster."""

FASTER = 1.3
"""If the link holds no packets although they leave at this many times the link's rate, the link has become faster."""

LEAST_S = 0.05
"""The shortest time between two probes from which a change of the wait is computed."""

MOST_CHANGE = 2.0
"""The largest factor by which one measurement changes the time of a gradient."""


class LinkReport(NamedTuple):
    """A report of a worker on its link: fields of Report in common/kofn_common/rpc/kofn.proto."""

    link_wait_s: float
    """The delay of a gradient beyond the usual pacing, in link and host together, in seconds."""
    link_mbps: float = 0.0
    """The rate of a slow link; 0: the link is not slow."""
    link_backlog_s: float = 0.0
    """How long the packets wait that a slow link holds of earlier iterations, in seconds."""


class LinkPacing:
    """The pacing of one worker: `usual`, and slower while the worker's link is slower than the others'.

    `set_pace` is called with each new rate.
    """

    def __init__(
        self, usual: PacingRate | None, layout: BlockLayout, set_pace: Callable[[PacingRate | None], object]
    ) -> None:
        self._usual, self._layout, self._set_pace = usual, layout, set_pace
        self._rate = usual
        self._usual_wait_s = self._fence_s = 0.0  # how long packets usually wait in the others' links, and at most
        self._link_s = 0.0  # the time of a gradient in the link; 0: the link is as fast as the others'
        self._paced_s = 0.0  # the time of a gradient at the present rate
        self._sent_s = self._paced_then_s = 0.0  # when the latest probe left, and the time of a gradient at its rate
        self._growth = GROWTH
        self._before: LinkWait | None = None  # the measurement from which the next change is computed

    def judge(self, link: kofn_pb2.Link, plan: Plan) -> None:
        """Take the controller's judgement of this worker's link."""
        self._usual_wait_s, self._fence_s, self._before = link.usual_s, link.fence_s, None
        if link.delay_s and not self._link_s:
            self._link_s = self._usual_s(plan) + link.delay_s
        elif not link.delay_s:
            self._link_s = 0.0
        self._paced_s = self._link_s / FREE
        self._pace(plan)

    def measured(self, wait: LinkWait, plan: Plan, *, queued: bool) -> LinkReport:
        """Take how long packets wait in the link; return the report on a link with gradients of this plan.

        `queued`: whether packets wait in this host. If none do, the link may be empty because there was nothing to
        send.
        """
        if not self._link_s:
            return LinkReport(wait.wait_s)
        if wait.sent_s != self._sent_s:  # otherwise the probe has no answer yet, and its wait is longer than before
            self._sent_s, self._paced_then_s = wait.sent_s, self._paced_s
        excess_s = wait.wait_s - (0.0 if wait.before_all else self._usual_wait_s)
        if wait.wait_s < EMPTY * self._link_s + (NOISE_S if wait.before_all else self._fence_s):
            self._before = None
            if queued or not wait.before_all:
                self._paced_s /= self._growth
            if self._paced_s * FASTER < self._link_s:
                self._link_s, self._growth = self._paced_s * FREE, FASTER_GROWTH
        elif not wait.before_all:
            self._before = None
            self._change(self._paced_then_s + excess_s)
        elif self._before is None:
            self._before = wait
            self._drain(excess_s)
        elif wait.sent_s > self._before.sent_s + LEAST_S:
            growth = (wait.wait_s - self._before.wait_s) / (wait.sent_s - self._before.sent_s)
            self._before = wait
            self._change(self._paced_s * (1 + growth))
            self._drain(excess_s)
        self._link_s = max(self._link_s, usual_s := self._usual_s(plan))
        self._pace(plan)
        return LinkReport(
            link_wait_s=self._link_s - usual_s + self._usual_wait_s,
            link_mbps=self._bits(plan) * 1e-6 / self._link_s,
            link_backlog_s=wait.wait_s if wait.before_all else 0.0,
        )

    def _change(self, found_s: float) -> None:
        """Take a measured time of a gradient in the link."""
        known_s = self._link_s
        self._growth = GROWTH
        self._link_s = (known_s + min(max(found_s, known_s / MOST_CHANGE), known_s * MOST_CHANGE)) / 2
        self._paced_s = self._link_s / FREE

    def _drain(self, backlog_s: float) -> None:
        """Let packets leave so slowly that the link passes its backlog meanwhile."""
        self._paced_s = (self._link_s + backlog_s / 2) / FREE

    def _bits(self, plan: Plan) -> int:
        """Return the bits of the packets of an iteration of this plan, with their frames."""
        return 8 * len(plan.blocks) * packet_bytes(self._layout.words_of(0, plan.lanes))

    def _usual_s(self, plan: Plan) -> float:
        return self._bits(plan) * 1e-6 / self._usual.mbps if self._usual else 0.0

    def _pace(self, plan: Plan) -> None:
        """Set the rate, if it is new."""
        rate = self._usual
        if self._link_s:
            mbps = self._bits(plan) * 1e-6 / self._paced_s
            rate = PacingRate(mbps=mbps, burst_bytes=packet_bytes(self._layout.words_most))
        if rate != self._rate:
            self._rate = rate
            self._set_pace(rate)
