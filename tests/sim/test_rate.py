"""The estimated rate of a link of known rate, and the ratio that follows from it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn.sim.clock import VirtualClock
from kofn.sim.network import FRAME_BYTES, Link
from kofn_common.gso import BUCKET_BYTES
from kofn_common.wire.packet import HEADER_BYTES, KofnHeader
from kofn_host.compression.rate import (
    DEAD_ZONE,
    FEW,
    HOLD,
    LATE,
    PROBE,
    RATIO_MIN,
    READINGS,
    WINDOW,
    RateEstimator,
    compression_ratio,
    lanes_for,
)
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.errors import RateError
from kofn_host.transport.fault_injection import Faults
from tests.host.engine.pacer import Pacer

PACKET = 1106
GRADIENT = 1024
BLOCKS = 200
MBPS = 20.0
GRADIENT_BYTES = 1920


def estimator(reading: str = "deliverable", *, stability: float = 0.1, blocks: int = BLOCKS) -> RateEstimator:
    rate = RateEstimator(reading, stability=stability)
    rate.begin(blocks * GRADIENT)
    return rate


def stream(rate: RateEstimator, mbps: list[float], start_s: float = 0.0) -> float:
    """Send answers whose gaps follow from these rates, and return when the last one came."""
    now = start_s
    for link_mbps in mbps:
        now += PACKET * 8e-6 / link_mbps
        rate.answered(now, wire_bytes=PACKET, gradient_bytes=GRADIENT)
    return now


def mbps(rate: RateEstimator) -> float:
    assert rate.rate_bps is not None
    return rate.rate_bps / 1e6


def test_constant_rate_is_found_without_compression() -> None:
    rate = estimator()
    stream(rate, [MBPS] * BLOCKS)
    rate.begin(BLOCKS * GRADIENT)
    assert mbps(rate) == pytest.approx(MBPS)
    assert rate.ratio == rate.wish == rate.rest == 1


def test_drop_to_a_quarter_is_found_after_two_windows() -> None:
    rate = estimator()
    now = stream(rate, [MBPS] * BLOCKS)
    rate.begin(BLOCKS * GRADIENT)
    now = stream(rate, [MBPS] * 100, now)
    now = stream(rate, [MBPS / 4] * WINDOW, now)
    assert mbps(rate) == pytest.approx(MBPS), "a new estimate must not be trusted at once"
    stream(rate, [MBPS / 4] * (WINDOW + HOLD + 1), now)
    assert mbps(rate) == pytest.approx(MBPS / 4)
    delivered = 100 + 2 * WINDOW + HOLD + 1
    assert rate.rest == rate.wish == pytest.approx(1 / 4 / 0.9)
    assert rate.ratio == pytest.approx((delivered + (BLOCKS - delivered) * rate.rest) / BLOCKS)


def test_rate_that_recovers_is_not_compressed_for() -> None:
    rate = estimator()
    stream(rate, [MBPS] * 50 + [MBPS / 4] * 50 + [MBPS] * 50)
    assert rate.wish == 1


def two_iterations(stability: float, share: float) -> RateEstimator:
    """Return an estimator after one iteration at the planned rate and one at this share of it."""
    rate = estimator(stability=stability)
    for link_mbps in (MBPS, share * MBPS):
        stream(rate, [link_mbps] * BLOCKS)
        rate.begin(BLOCKS * GRADIENT)
    return rate


@pytest.mark.parametrize("stability", [1e-9, 0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_halved_link_is_followed_at_any_required_stability(stability: float) -> None:
    rate = two_iterations(stability, 1 / 2)
    assert rate.wish == pytest.approx(1 / 2 / (1 - DEAD_ZONE))
    assert lanes_for(rate.wish) == 16


def test_stability_decides_only_which_rates_are_stable() -> None:
    """A rate that falls by a tenth in each window is unstable within 0.05 and stable within 0.5."""
    falling = [MBPS * 0.9 ** (block / WINDOW) for block in range(8 * WINDOW)]
    strict, lax = estimator(stability=0.05), estimator(stability=0.5)
    for rate in (strict, lax):
        stream(rate, falling)
    assert strict.rate_bps is None
    assert lax.rate_bps is not None


@pytest.mark.parametrize("stability", [0.01, 0.9])
def test_nothing_is_narrowed_within_the_dead_zone(stability: float) -> None:
    """The gradient is late here, since one in time would keep the lanes wide as well."""
    inside, outside = (two_iterations(stability, 1 - DEAD_ZONE + by) for by in (0.001, -0.001))
    for rate in (inside, outside):
        rate._gradient_bps = rate._planned_bps / LATE / 2
        assert not rate.in_time
    assert inside.wish == 1
    assert lanes_for(outside.wish) == 16


@pytest.mark.parametrize("stability", [0.01, 0.9])
def test_gradient_is_late_when_it_takes_longer_than_the_limit(stability: float) -> None:
    """Packets have three quarters of the size. While the gradient is in time, the wish follows the
    bytes, not the rate.
    """
    for longer, in_time in ((0.99, True), (1.01, False)):
        rate = RateEstimator("deliverable", stability=stability)
        narrow(rate, 1, 1e-3, 2000)
        narrow(rate, 1, longer * LATE * 1e-3, 1500)
        rate.begin(BLOCKS * GRADIENT_BYTES)
        assert rate.in_time is in_time
        assert rate.wish == pytest.approx(1500 / 2000 if in_time else 1500 / 2000 / (longer * LATE) / (1 - DEAD_ZONE))


@pytest.mark.parametrize("swing", [0.02, 0.5])
def test_swinging_rate_is_measured_as_its_mean(swing: float) -> None:
    rate, numbers = estimator(stability=0.05), random.Random(1)
    for _ in range(3):
        links = [MBPS * (1 + (swing if block // WINDOW % 2 else -swing) / 2) for block in range(BLOCKS)]
        stream(rate, [link * numbers.uniform(0.99, 1.01) for link in links])
        rate.begin(BLOCKS * GRADIENT)
    assert mbps(rate) == pytest.approx(MBPS, rel=0.1)
    assert rate.wish == 1


def test_steadily_falling_rate_is_never_stable() -> None:
    rate = estimator()
    stream(rate, [MBPS * 0.95**block for block in range(BLOCKS)])
    assert rate.rate_bps is None


def test_wait_for_the_first_answer_is_not_a_rate() -> None:
    rate = estimator()
    now = stream(rate, [MBPS] * 50)
    rate.begin(BLOCKS * GRADIENT)
    stream(rate, [MBPS] * 50, now + 100.0)
    assert mbps(rate) == pytest.approx(MBPS)


def test_tiny_iteration_keeps_the_last_rate() -> None:
    rate = estimator()
    now = stream(rate, [MBPS] * 50)
    rate.begin(BLOCKS * GRADIENT)
    stream(rate, [MBPS / 4] * 2 * FEW, now)
    assert mbps(rate) == pytest.approx(MBPS)
    rate.begin(BLOCKS * GRADIENT)
    assert rate.wish == 1


def test_answers_read_together_count_as_one() -> None:
    rate = estimator()
    for block in range(BLOCKS):
        read_s = (block // 5 + 1) * 5 * PACKET * 8e-6 / MBPS
        rate.answered(read_s, wire_bytes=PACKET, gradient_bytes=GRADIENT)
    rate.begin(BLOCKS * GRADIENT)
    assert mbps(rate) == pytest.approx(MBPS)


def test_standing_clock_has_no_rate() -> None:
    rate = estimator()
    for _ in range(BLOCKS):
        rate.answered(1.0, wire_bytes=PACKET, gradient_bytes=GRADIENT)
    assert rate.rate_bps is None
    assert rate.ratio == 1


def test_literal_reading_of_a_constant_rate_sends_nothing_more() -> None:
    rate = estimator("literal")
    stream(rate, [MBPS] * 100)
    assert rate.rest == pytest.approx(0, abs=1e-9)
    assert rate.ratio == pytest.approx(100 / BLOCKS)
    assert rate.wish == RATIO_MIN


def test_literal_reading_compares_the_rate_with_the_iterations_start() -> None:
    rate = estimator("literal")
    now = stream(rate, [MBPS] * 50)
    rate.begin(BLOCKS * GRADIENT)
    assert rate.ratio == 1, "the first iterations send everything"
    stream(rate, [MBPS / 2] * 50 + [MBPS / 8] * 50, now)
    assert rate.rest == pytest.approx(3 / 4)


@given(
    reading=st.sampled_from(sorted(READINGS)),
    stability=st.floats(1e-6, 0.999),
    events=st.lists(
        st.tuples(st.integers(0, 10**9), st.floats(0, 1e9), st.booleans()),
        max_size=80,
    ),
)
def test_ratio_is_always_between_its_bounds(
    reading: str, stability: float, events: list[tuple[int, float, bool]]
) -> None:
    """This includes clocks that jump and more bytes than the gradient has."""
    rate = estimator(reading, stability=stability, blocks=10)
    for size, now, new in events:
        if new:
            rate.begin(1 + size)
        rate.answered(now, wire_bytes=size, gradient_bytes=size)
        assert RATIO_MIN <= rate.ratio <= 1
        assert RATIO_MIN <= rate.wish <= 1
        assert 0 <= rate.rest <= 1


@given(start=st.floats(1e-3, 1e12), now=st.floats(1e-3, 1e12), total=st.integers(1, 10**12), share=st.floats(0, 2))
def test_both_formulas_are_bounded(start: float, now: float, total: int, share: float) -> None:
    for formula in READINGS.values():
        rest = formula(start, now)
        assert 0 <= rest <= 1
        ratio = compression_ratio(total_bytes=total, delivered_bytes=int(share * total), rest=rest)
        assert RATIO_MIN <= ratio <= 1


def test_formulas_give_known_values() -> None:
    assert READINGS["deliverable"](100, 25) == 0.25
    assert READINGS["literal"](100, 25) == 0.75
    assert compression_ratio(total_bytes=1000, delivered_bytes=200, rest=0.25) == pytest.approx(0.4)


@given(ratio=st.floats(RATIO_MIN, 1))
def test_lanes_take_no_more_than_the_ratio_unless_they_are_the_narrowest(ratio: float) -> None:
    for widths in ((32, 16, 8, 4), (32, 16, 8), (16,)):
        width = lanes_for(ratio, widths)
        assert width / 32 <= ratio or width == widths[-1]
        assert all(other / 32 > ratio for other in widths if other > width)


def test_unmeasurable_configuration_is_refused() -> None:
    with pytest.raises(RateError, match="reading must be one of deliverable, literal, got 'mine'"):
        RateEstimator("mine", stability=0.1)
    with pytest.raises(RateError, match="gradient_bytes must be 1 or more, got 0"):
        estimator(blocks=0)


@pytest.mark.slow
@pytest.mark.parametrize("pace_mbps", [0.0, MBPS])
def test_rate_of_a_falling_link_is_found_while_packets_wait_for_it(pace_mbps: float) -> None:
    """All blocks are handed over at once. Answers come at the link's rate, wherever packets wait.

    The link's bucket passes some packets at once.
    """
    clock, rate = VirtualClock(), estimator()
    size = HEADER_BYTES + GRADIENT + FRAME_BYTES
    seen = list[tuple[float, float]]()

    def answered(header: KofnHeader, values: bytes) -> None:
        rate.answered(clock.time(), wire_bytes=size, gradient_bytes=GRADIENT)
        seen.append((mbps(rate) if rate.rate_bps else 0.0, rate.wish))

    faults = Faults((), rank=0, direction="send", seed=1)
    link = Link(clock, MBPS, faults, answered)
    pace = pacing_rate(pace_mbps, GRADIENT // 256)

    def leave(blocks: list[int]) -> None:
        for block in blocks:
            link.send(KofnHeader(block=block), bytes(GRADIENT))

    pacer = Pacer[int](pace, clock, leave) if pace else None
    for block in range(BLOCKS):
        if pacer is None:
            leave([block])
        else:
            pacer.send([(block, HEADER_BYTES + GRADIENT)])
    clock.after(BLOCKS / 2 * size * 8e-6 / MBPS, link.shape, MBPS / 4)
    clock.run()
    assert seen[BLOCKS // 2 - 1] == (pytest.approx(MBPS, rel=0.01), 1)
    assert seen[-1] == (pytest.approx(MBPS / 4, rel=0.01), pytest.approx(1 / 4 / 0.9, rel=0.01))
    found = next(number for number, (now_mbps, _) in enumerate(seen) if 0 < now_mbps < MBPS / 2)
    assert found <= BLOCKS // 2 + 2 * WINDOW + HOLD + BUCKET_BYTES // size


def narrow(rate: RateEstimator, iterations: int, packet_s: float, wire_bytes: int) -> None:
    """Run iterations whose packets take `packet_s` each, whatever their size."""
    for _ in range(iterations):
        rate.begin(BLOCKS * GRADIENT_BYTES)
        for block in range(BLOCKS):
            rate.answered(block * packet_s, wire_bytes=wire_bytes, gradient_bytes=GRADIENT_BYTES)


def test_smaller_packets_that_take_the_same_time_are_not_made_smaller_again() -> None:
    rate = RateEstimator("deliverable", stability=0.1)
    narrow(rate, 2, 1e-3, 2000)
    assert rate.wish == 1
    narrow(rate, 1, 4e-3, 2000)
    assert not rate.in_time and rate.wish == pytest.approx(1 / 4 / 0.9)
    narrow(rate, PROBE - 2, 1e-3, 550)
    assert rate.in_time and rate.wish == pytest.approx(550 / 2000 / 0.9), (
        "a quarter of the bytes suffices, so the link does not limit"
    )


def test_wider_lanes_are_probed_while_the_gradient_is_in_time() -> None:
    rate = RateEstimator("deliverable", stability=0.1)
    narrow(rate, 1, 1e-3, 2000)
    narrow(rate, PROBE - 1, 1e-3, 550)
    rate.begin(BLOCKS * GRADIENT_BYTES)
    assert rate.wish == pytest.approx(2 * 550 / 2000)
    assert not rate.measured, "this iteration gives no reason to send less"
    narrow(rate, 1, 2e-3, 1050)
    assert not rate.in_time and rate.wish < 1 / 2, "the link must limit the iteration"
