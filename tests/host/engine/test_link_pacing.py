"""A worker with a slow link finds the link's rate, and sends at that rate."""

import numpy as np
import pytest

from kofn_common.rpc import kofn_pb2
from kofn_host.compression.plan import Plan
from kofn_host.engine.link_pacing import LinkPacing, LinkReport
from kofn_host.engine.pacing_rate import BURST_PACKETS, BURST_S, PacingRate, pacing_rate, packet_bytes
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.link_probe import LinkWait

BLOCKS, WORDS = 100, 4
LAYOUT = BlockLayout(blocks=BLOCKS, words=WORDS, widest=32)


def plan_of(blocks: int) -> Plan:
    return Plan(lanes=0, ratio=1 << 16, blocks=np.arange(blocks), gap=np.ones(blocks, np.int64), expected=None)


PLAN = plan_of(BLOCKS)
BITS = 8 * BLOCKS * packet_bytes(WORDS)
USUAL = pacing_rate(200.0, WORDS)
USUAL_S = BITS * 1e-6 / 200
EVERY_S = 0.025
"""The time between two probes: an iteration."""


class SlowLink:
    """A link that always has packets to carry, and holds those that come too fast."""

    def __init__(self, mbps: float, delay_s: float) -> None:
        self.mbps, self.backlog_s, self.now, self.sent_bytes = mbps, 0.0, 0.0, 0
        self.rate = USUAL
        self.pacing = LinkPacing(USUAL, LAYOUT, self.set_pace)
        self.pacing.judge(kofn_pb2.Link(delay_s=delay_s, usual_s=2e-3, fence_s=8e-3), PLAN, 0.0)
        self.report = LinkReport(delay_s)

    def set_pace(self, rate: PacingRate | None) -> None:
        self.rate = rate

    def iterate(self, iterations: int, noise_s: float = 0.0) -> None:
        for iteration in range(iterations):
            assert self.rate is not None
            self.now += EVERY_S
            self.backlog_s = max(0.0, self.backlog_s + EVERY_S * (self.rate.mbps / self.mbps - 1))
            self.sent_bytes += round(EVERY_S * self.rate.mbps * 1e6 / 8)
            wait_s = self.backlog_s + noise_s * (iteration % 3 > 0)
            wait = LinkWait(wait_s, self.now, self.now + wait_s, self.sent_bytes, before_all=True)
            self.report = self.pacing.measured(wait, PLAN, queued=True)

    @property
    def delay_s(self) -> float:
        return self.report.link_wait_s

    @property
    def true_s(self) -> float:
        return BITS * 1e-6 / self.mbps - USUAL_S


@pytest.mark.parametrize("mbps", [5.0, 10.0, 20.0, 40.0])
@pytest.mark.parametrize("first", [0.5, 1.0, 2.0])
def test_packets_leave_at_the_links_rate_and_hardly_wait_in_it(mbps: float, first: float) -> None:
    """Also after a first judgement that was wrong by a factor of two."""
    link = SlowLink(mbps, first * (BITS * 1e-6 / mbps - USUAL_S))
    link.iterate(60)
    backlogs, delays = [], []
    for _ in range(100):
        link.iterate(1)
        backlogs.append(link.backlog_s)
        delays.append(link.delay_s)
    assert np.mean(delays) == pytest.approx(link.true_s, rel=0.15, abs=3e-3)
    assert np.mean(backlogs) < 0.2 * EVERY_S, "a packet must arrive within its iteration"
    assert link.report.link_mbps == pytest.approx(mbps, rel=0.3)
    assert link.report.link_backlog_s <= link.backlog_s


def test_link_that_becomes_faster_or_slower_is_noticed() -> None:
    link = SlowLink(10.0, 0.09)
    link.iterate(40)
    link.mbps = 200.0
    link.iterate(70)
    assert link.delay_s < 10e-3
    link.mbps = 5.0
    link.iterate(80)
    assert link.delay_s == pytest.approx(link.true_s, rel=0.15)


@pytest.mark.parametrize("mbps", [10.0, 200.0])
def test_wait_for_a_scheduler_is_not_taken_for_a_backlog(mbps: float) -> None:
    """A link of 200 Mbit/s was judged to be slow by mistake."""
    link = SlowLink(mbps, 0.08)
    link.iterate(200, noise_s=6e-3)
    assert link.delay_s == pytest.approx(link.true_s, rel=0.15, abs=3e-3)
    assert link.rate is not None
    assert link.rate.mbps == pytest.approx(mbps, rel=0.15)


def test_rate_is_found_while_the_link_still_holds_what_came_before() -> None:
    """The bytes between two probes tell the rate, whatever waited before the first one."""
    link = SlowLink(10.0, 0.03)
    link.backlog_s = 0.5
    link.iterate(40)
    assert link.report.link_mbps == pytest.approx(10.0, rel=0.1)


def test_probe_without_an_answer_counts_once_however_often_it_is_looked_at() -> None:
    pacing = LinkPacing(USUAL, LAYOUT, lambda rate: None)
    pacing.judge(kofn_pb2.Link(delay_s=0.05, usual_s=2e-3, fence_s=8e-3), PLAN, 0.0)
    for look in range(1, 40):
        report = pacing.measured(
            LinkWait(look * EVERY_S, 1.0, 1.0, 0, before_all=False, answered=False), PLAN, queued=True
        )
    assert report.link_wait_s < 40 * EVERY_S + 0.1


def test_link_that_is_empty_for_lack_of_packets_is_no_faster() -> None:
    link = SlowLink(10.0, 0.08)
    link.iterate(60)
    known_s = link.delay_s
    for _ in range(60):
        link.now += EVERY_S
        link.report = link.pacing.measured(
            LinkWait(0.0, link.now, link.now, link.sent_bytes, before_all=True), PLAN, queued=False
        )
    assert link.delay_s == known_s


def test_gradient_that_goes_out_at_once_is_timed_by_its_last_packet() -> None:
    """With k = n: the link is idle between two gradients."""
    rates, delays = list[PacingRate | None](), list[float]()
    pacing = LinkPacing(USUAL, LAYOUT, rates.append)
    pacing.judge(kofn_pb2.Link(delay_s=0.05, usual_s=2e-3, fence_s=8e-3), PLAN, 0.0)
    for iteration in range(60):
        rate = rates[-1]
        assert rate is not None
        late_s = max(0.0, BITS * 1e-6 / 10 - BITS * 1e-6 / rate.mbps)
        wait = LinkWait(2e-3 + late_s, iteration / 10, 0.0, 0, before_all=False)
        delays.append(pacing.measured(wait, PLAN, queued=False).link_wait_s)
    assert np.mean(delays[20:]) == pytest.approx(BITS * 1e-6 / 10 - USUAL_S, rel=0.15)


def large() -> tuple[BlockLayout, Plan, PacingRate]:
    """Return layout, plan and usual rate of a gradient larger than a window; a burst takes 8 ms, late ones 24 ms."""
    layout = BlockLayout(blocks=20 * BLOCKS, words=WORDS, widest=32)
    burst_bytes = BURST_PACKETS * packet_bytes(layout.words_most)
    return layout, plan_of(20 * BLOCKS), PacingRate(mbps=burst_bytes * 8e-6 / BURST_S, burst_bytes=burst_bytes)


def test_only_the_wait_that_no_burst_explains_is_extrapolated() -> None:
    """A burst takes up to 24 ms, and a tenth of the gradient has left before the probe, which is more than a burst."""
    layout, plan, usual = large()
    pacing = LinkPacing(usual, layout, lambda rate: None)
    for number, (probe_s, expected_s) in enumerate([(1e-3, 1e-3), (24e-3, 24e-3), (44e-3, 24e-3 + 10 * 20e-3)]):
        wait = LinkWait(10 * probe_s, float(number), 0.0, 0, before_all=False, share=1 / 10)
        assert pacing.measured(wait, plan, queued=False).link_wait_s == pytest.approx(expected_s)


def test_link_that_was_judged_slow_by_mistake_becomes_usual_again() -> None:
    """Other workers' bursts delay each probe by up to 8 ms. The controller has taken a longer wait for a slow link."""
    layout, plan, usual = large()
    rates, noise = list[PacingRate | None](), np.random.default_rng(1)
    pacing = LinkPacing(usual, layout, rates.append)
    pacing.judge(kofn_pb2.Link(delay_s=0.13, usual_s=1e-3, fence_s=3e-3), plan, 0.0)
    for iteration in range(1, 30):
        wait = LinkWait(20 * noise.uniform(0, 8e-3), iteration, 0.0, 0, before_all=False, share=1 / 20)
        report = pacing.measured(wait, plan, queued=False)
    assert report.link_wait_s == 0.0
    assert rates[-1] is not None
    assert rates[-1].mbps == pytest.approx(usual.mbps)


def test_usual_rate_is_kept_for_a_link_that_is_not_slow() -> None:
    rates = list[PacingRate | None]()
    pacing = LinkPacing(USUAL, LAYOUT, rates.append)
    wait = LinkWait(0.2, 1.0, 1.2, 0, before_all=False)
    assert pacing.measured(wait, PLAN, queued=True) == LinkReport(0.2)
    assert rates == [], "the engine has the usual rate from the start"
    pacing.judge(kofn_pb2.Link(delay_s=0.1), PLAN, 0.0)
    (slow,) = rates
    assert slow is not None
    assert slow.mbps < 20
    pacing.judge(kofn_pb2.Link(), PLAN, 2.0)
    assert pacing.measured(wait, PLAN, queued=True) == LinkReport(0.2)
    assert rates == [slow, USUAL], "a rate is set once"
