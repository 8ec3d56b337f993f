"""Paces a worker's packets at the rate of its link, if the link is slower than the other workers' links.

Packets that wait in this host can be overtaken by heavier ones, and dropped once the block is answered.  Packets that
wait in the link cannot: a link that is too slow for a gradient an iteration would fill with gradients that come too
late, and each later gradient would wait behind them.
"""

import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from kofn_common.rpc import kofn_pb2
from kofn_host.compression.plan import Plan
from kofn_host.engine.pacing_rate import PacingRate, packet_bytes
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.link_probe import LinkWait

EMPTY = 0.005
"""The largest wait in a link that holds no packets of this worker, as a part of the time of a gradient in the link."""

FREE = 0.95
"""The part of the link's rate at which late gradients leave: the link then holds no packets."""

NOISE_S = 1e-3
"""A wait behind no packets that is only the noise of timers."""

STANDING = 3
"""The number of latest probes whose shortest wait is the present wait. Longer ones may be the noise of schedulers."""

STALL_S = 50e-3
"""The part of a single wait that the noise of schedulers may explain."""

FLOOR = 64
"""The number of latest probes whose shortest wait, FLOOR_MOST_S at most, is not the link's, but the busy switch's."""

FLOOR_MOST_S = 5e-3

SURE_S = 10e-3
"""A wait above the floor that only packets in the link explain."""

GROWTH = 1.02
"""The factor by which the rate grows with each probe, as long as the link holds no packets."""

SEARCH_GROWTH = 1.005
"""The factor while the rate is above the link's known rate: a search for a higher one."""

FASTER_GROWTH = 1.1
"""The factor while the link is becoming faster."""

FASTER = 1.1
"""If the link carries packets at this many times its rate when it last held packets, it has become faster."""

LEAST_S = 0.1
"""The shortest time between two probes from whose bytes the link's rate is computed."""

MOST_CHANGE = 4.0
"""The largest factor by which one measurement changes the time of a gradient."""


class LinkReport(NamedTuple):
    """A report of a worker on its link: fields of Report in common/kofn_common/rpc/kofn.proto."""

    link_wait_s: float
    """The delay of a gradient beyond the usual pacing, in link and host together, in seconds."""
    link_mbps: float = 0.0
    """The rate of a slow link; 0: the link is not slow."""
    link_backlog_s: float = 0.0
    """How long the packets wait that a slow link holds of earlier iterations, in seconds."""
    link_wait_unsure: bool = False
    """Whether the delay is the time so far of a probe without an answer, which may have been lost."""


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
        self._paced_then_s = 0.0  # the time of a gradient at the rate when the latest probe was noted first
        self._held_s = math.inf  # the time of a gradient when the link last held packets; infinity: not yet
        self._judged_s = 0.0  # when the controller judged the link: earlier packets left at another rate
        self._reported_s = 0.0  # when the probe of the latest report left
        self._before: LinkWait | None = None  # the probe since which the link's rate is measured
        self._full = False  # whether that probe and all later ones found packets in the link
        self._waits = deque[LinkWait](maxlen=FLOOR)  # of the latest probes

    def judge(self, link: kofn_pb2.Link, plan: Plan, now_s: float) -> None:
        """Take the controller's judgement of this worker's link."""
        self._usual_wait_s, self._fence_s = link.usual_s, link.fence_s
        if bool(link.delay_s) == bool(self._link_s):
            return
        self._judged_s, self._before = now_s, None
        self._link_s = self._usual_s(plan) + link.delay_s if link.delay_s else 0.0
        self._held_s, self._paced_s = math.inf, self._link_s / FREE
        self._pace(plan)

    def measured(self, wait: LinkWait, plan: Plan, *, queued: bool) -> LinkReport:
        """Take how long packets wait in the link; return the report on a link with gradients of this plan.

        `queued`: whether packets wait in this host. If none do, the link may be empty because there was nothing to
        send.
        """
        wait = self._extrapolated(wait, plan)
        if wait.answered or wait.before_all:  # otherwise the iteration has ended without the answer, which may be lost
            self._note(wait)
            if self._link_s:
                self._follow(wait, plan, queued=queued)
        if not self._link_s:  # a probe that is unanswered in a second iteration was not lost (link_probe_passed)
            first, self._reported_s = wait.sent_s != self._reported_s, wait.sent_s
            return LinkReport(wait.wait_s, link_wait_unsure=first and not wait.answered)
        delay_s = self._link_s - self._usual_s(plan)
        return LinkReport(
            link_wait_s=delay_s + self._usual_wait_s if delay_s else 0.0,  # the usual wait may have become shorter
            link_mbps=self._bits(plan) * 1e-6 / self._link_s,
            link_backlog_s=self._standing_s() if wait.before_all else 0.0,
        )

    def _extrapolated(self, wait: LinkWait, plan: Plan) -> LinkWait:
        """Return the probe with a wait whose part behind bursts is not extrapolated to the gradient.

        A link that passes this worker's rate passes the worker's burst within the burst's time, even if all workers
        share the link and their bursts coincide. Such a wait does not grow with the gradient.
        """
        if wait.before_all or self._rate is None:
            return wait
        probe_s = wait.share * wait.wait_s
        sent_s = wait.share * self._bits(plan) * 1e-6 / self._rate.mbps
        burst_s = min(self._rate.burst_s, sent_s, probe_s)
        return wait._replace(wait_s=burst_s + (probe_s - burst_s) / wait.share)

    def _note(self, wait: LinkWait) -> None:
        """Add a probe to the latest ones. If it is known, it had no answer then, and its wait is longer now."""
        if self._waits and self._waits[-1].sent_s == wait.sent_s:
            self._waits.pop()
        else:
            self._paced_then_s = self._paced_s
        self._waits.append(wait)

    def _follow(self, wait: LinkWait, plan: Plan, *, queued: bool) -> None:
        """Set the rate by how long packets wait in a slow link."""
        standing_s = self._standing_s()
        empty = self._empty(standing_s if wait.before_all else standing_s - self._fence_s)
        if wait.before_all:
            self._measure(wait, plan, standing_s)
        else:
            self._before = None
        found_s = self._paced_then_s + max(0.0, standing_s - self._usual_wait_s)
        if empty:
            if not wait.before_all:
                self._take(min(self._link_s, found_s), held=False)
            if queued or not wait.before_all:
                self._paced_s /= self._growth()
        elif wait.before_all or wait.sent_s < self._judged_s:
            self._held_s = self._link_s
            self._paced_s = (self._link_s + standing_s / 2) / FREE  # the link passes its backlog meanwhile
        else:
            self._take(found_s, held=True)
            self._paced_s = self._link_s
        self._link_s = max(self._link_s, self._usual_s(plan))
        self._paced_s = max(self._paced_s, self._usual_s(plan))
        self._pace(plan)

    def _standing_s(self) -> float:
        """Return the wait beyond the floor that the latest probes had in common, or that no stall explains."""
        floor_s = min(FLOOR_MOST_S, *(wait.wait_s for wait in self._waits))
        common_s = min(wait.wait_s for wait in islice(reversed(self._waits), STANDING))
        latest = self._waits[-1]
        return max(0.0, common_s - floor_s, latest.wait_s - STALL_S if latest.before_all else 0.0)

    def _empty(self, standing_s: float) -> bool:
        return standing_s < EMPTY * self._link_s + NOISE_S

    def _measure(self, wait: LinkWait, plan: Plan, standing_s: float) -> None:
        """Compute the link's rate from the bytes that it has carried from one probe to a later one.

        That is the link's rate if the link held packets all the time, else the link may be faster. A link that has
        carried all that was sent shows only by a long wait that it is no faster. If the wait has become shorter, the
        queue that became shorter may be that of the answers, so the link need not be as fast as it seems.
        """
        if not wait.answered or wait.sent_s < self._judged_s:
            return
        before, empty = self._before, self._empty(standing_s)
        self._full = self._full and not empty
        if before is not None:
            if wait.passed_s - before.passed_s < LEAST_S:
                return
            carried = max(wait.sent_bytes - before.sent_bytes, 1)
            found_s = self._bits(plan) * (wait.passed_s - before.passed_s) / (8 * carried)
            grown_s = wait.wait_s - before.wait_s
            if found_s < self._link_s:
                valid = grown_s > -SURE_S
            else:
                valid = self._full and (standing_s > SURE_S or grown_s > NOISE_S)
            if valid:
                self._take(found_s, held=self._full)
        self._before, self._full = wait, not empty

    def _take(self, found_s: float, *, held: bool) -> None:
        """Take a measured time of a gradient in the link; `held`: whether the link held packets."""
        self._link_s = min(max(found_s, self._link_s / MOST_CHANGE), self._link_s * MOST_CHANGE)
        if held:
            self._held_s = self._link_s

    def _growth(self) -> float:
        if self._link_s * FASTER < self._held_s:
            return FASTER_GROWTH
        return SEARCH_GROWTH if self._paced_s < self._link_s else GROWTH

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
