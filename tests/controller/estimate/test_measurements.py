"""Measurements: accepted and refused messages, silent workers, and the two views of one event."""

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import AHEAD_MAX, GRACE_S, Arrival, Measurements
from kofn_controller.estimate.views import KEPT


def report(iteration: int, first_block_s: float = 0.01, **fields: Any) -> pb.Report:
    return pb.Report(iteration=iteration, first_block_s=first_block_s, **fields)


def arrival(worker: int, iteration: int, verdict: str = "ADDED", timestamp_us: int = 0) -> Arrival:
    return Arrival(worker=worker, iteration=iteration, verdict=verdict, timestamp_us=timestamp_us)


def test_window_holds_the_latest_values_oldest_first() -> None:
    taken = Measurements(workers=2, window=3)
    for iteration in range(1, 6):
        assert taken.report(1, report(iteration, iteration * 0.01, censored=iteration == 4), now_s=0.0)
    np.testing.assert_array_equal(taken.times_s[1], [0.03, 0.04, 0.05])
    np.testing.assert_array_equal(taken.cut[1], [False, True, False])
    assert np.isnan(taken.times_s[0]).all()
    assert taken.iteration == 5


def test_late_iterations_are_counted() -> None:
    taken = Measurements(workers=1, window=4)
    for iteration, late in enumerate((True, False, True, True), 1):
        taken.report(0, report(iteration, late=late), now_s=0.0)
    assert (taken.track(0).late, taken.track(0).late_in_a_row) == (3, 2)


@pytest.mark.parametrize(
    ("rank", "bad", "words"),
    [
        (0, report(2, math.nan), "first_block_s must be 0 to 3600, got nan"),
        (0, report(2, -0.1), "first_block_s must be 0 to 3600, got -0.1"),
        (0, report(2, gradient_norm2=math.nan), "gradient_norm2 must be 0 to 1e+100, got nan"),
        (0, report(2, gradient_norm2=-1.0), "gradient_norm2 must be 0 to 1e+100, got -1.0"),
        (0, report(2, gradient_norm2=1e101), "gradient_norm2 must be 0 to 1e+100, got 1e+101"),
        (
            0,
            report(2, aggregate_products=(1.0, -1e101)),
            "aggregate_products must be -1e+100 to 1e+100, got [1.0, -1e+101]",
        ),
        (0, report(2, aggregate_products=(math.nan,)), "aggregate_products must be -1e+100 to 1e+100, got [nan]"),
        (0, report(2, aggregate_norm2=math.inf), "aggregate_norm2 must be 0 to 1e+100, got inf"),
        (0, report(2, contributors=math.nan), "contributors must be 0, or 1 to 2, got nan"),
        (0, report(2, contributors=-1.0), "contributors must be 0, or 1 to 2, got -1.0"),
        (0, report(2, contributors=0.5), "contributors must be 0, or 1 to 2, got 0.5"),
        (0, report(2, gradients=9.0, contributors=2.5), "contributors must be 0, or 1 to 2, got 2.5"),
        (0, report(2, gradients=1.0), "gradients of 0 contributors must be 0 to 0, got 1.0"),
        (0, report(2, contributors=2.0), "gradients of 2 contributors must be 0.00390625 to 8184, got 0.0"),
        (
            0,
            report(2, gradients=-1.5, contributors=2.0),
            "gradients of 2 contributors must be 0.00390625 to 8184, got -1.5",
        ),
        (
            0,
            report(2, gradients=math.nan, contributors=1.5),
            "gradients of 1.5 contributors must be 0.00390625 to 8184, got nan",
        ),
        (
            0,
            report(2, gradients=math.inf, contributors=2.0),
            "gradients of 2 contributors must be 0.00390625 to 8184, got inf",
        ),
        (0, report(2, math.inf), "first_block_s must be 0 to 3600, got inf"),
        (0, report(2, 1e9), "first_block_s must be 0 to 3600, got 1000000000.0"),
        (0, report(1), "iteration must be above 1, got 1"),
        (0, report(0), f"iteration must be 1 to {1 + AHEAD_MAX}, got 0"),
        (0, report(2 + AHEAD_MAX), f"iteration must be 1 to {1 + AHEAD_MAX}, got {2 + AHEAD_MAX}"),
        (2, report(2), "worker 2: the rank must be 0 to 1, got 2"),
        (-1, report(2), "worker -1: the rank must be 0 to 1, got -1"),
    ],
)
def test_bad_reports_are_refused_and_logged_once(
    rank: int, bad: pb.Report, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken = Measurements(workers=2, window=4)
    taken.report(0, report(1), now_s=0.0)
    before = taken.times_s.copy()
    with caplog.at_level(logging.WARNING):
        assert not taken.report(rank, bad, now_s=0.0)
        assert not taken.report(rank, bad, now_s=0.0)
    assert taken.refused == 2
    assert [words in message for message in caplog.messages] == [True]
    np.testing.assert_array_equal(taken.times_s, before)


def test_bad_digests_are_refused() -> None:
    taken = Measurements(workers=2, window=4)
    assert not taken.arrival(arrival(9, 1), now_s=0.0)
    assert not taken.arrival(arrival(0, AHEAD_MAX + 1), now_s=0.0)
    assert taken.arrival(arrival(0, 1), now_s=0.0)
    assert taken.refused == 2


reports = st.builds(
    pb.Report,
    iteration=st.integers(0, 2**32 - 1),
    first_block_s=st.floats(),
    censored=st.booleans(),
    late=st.booleans(),
)
arrivals = st.builds(
    Arrival,
    worker=st.integers(-1, 5),
    iteration=st.integers(0, 2**32 - 1),
    verdict=st.sampled_from(["OPENED", "LATE", "x"]),
    timestamp_us=st.integers(0, 2**48 - 1),
)


@given(st.lists(st.tuples(st.integers(-1, 5), reports) | arrivals, max_size=60))
def test_any_input_keeps_the_invariants(inputs: list[tuple[int, pb.Report] | Arrival]) -> None:
    taken = Measurements(workers=4, window=5)
    for now, item in enumerate(inputs):
        if isinstance(item, Arrival):
            taken.arrival(item, now_s=float(now))
        else:
            taken.report(*item, now_s=float(now))
    known = taken.times_s[~np.isnan(taken.times_s)]
    assert ((known >= 0) & np.isfinite(known)).all()
    tracks = [taken.track(rank) for rank in range(taken.workers)]
    assert taken.reports.sum() + sum(track.arrivals for track in tracks) + taken.refused <= len(inputs)
    assert all(track.reported <= taken.iteration for track in tracks)
    assert taken.times_s.shape == (4, 5)
    assert (taken.silent_s(float(len(inputs))) >= 0).all()


def test_silence_is_counted_from_its_begin_while_others_go_on() -> None:
    taken = Measurements(workers=3, window=4)
    taken.begin(10.0)
    assert not taken.silent_s(11.0).any()  # no worker is ahead of another
    taken.arrival(arrival(0, 1), now_s=10.5)
    np.testing.assert_allclose(taken.silent_s(11.0), [0.0, 1.0, 1.0])
    taken.report(1, report(1), now_s=11.0)
    taken.report(2, report(1), now_s=11.5)
    assert not taken.silent_s(12.0).any()
    taken.arrival(arrival(2, 2), now_s=12.0)
    np.testing.assert_allclose(taken.silent_s(12.5), [2.0, 1.5, 0.0])  # worker 0's last message came at 10.5


def test_message_that_may_be_in_transit_is_no_silence() -> None:
    taken = Measurements(workers=2, window=4)
    taken.begin(0.0)
    taken.report(0, report(1), now_s=5.0)
    assert not taken.silent_s(5.0 + 0.9 * GRACE_S).any()
    assert taken.silent_s(5.0 + 2 * GRACE_S)[1] == 5.0 + 2 * GRACE_S
    taken.report(0, report(9), now_s=5.1)  # the other's silence goes on when worker 0 runs ahead
    assert taken.silent_s(5.1)[1] == 5.1


def test_agreeing_views_are_not_counted() -> None:
    taken = Measurements(workers=2, window=4)
    for iteration in range(1, 50):
        for rank in range(2):
            time_s = 0.010 + 0.050 * rank
            taken.arrival(arrival(rank, iteration, timestamp_us=int(1e6 * (iteration + time_s))), now_s=0.0)
            taken.report(rank, report(iteration, time_s), now_s=0.0)
    assert taken.views.count == [0, 0]


def agreeing_start() -> Measurements:
    taken = Measurements(workers=2, window=4)
    for rank in range(2):
        taken.arrival(arrival(rank, 1), now_s=0.0)
        taken.report(rank, report(1), now_s=0.0)
    return taken


@pytest.mark.parametrize(
    ("verdict", "timestamp_us", "said", "words"),
    [
        ("LATE", 0, report(2), "iteration 2: worker 1 says that it was in time, but the switch found it LATE"),
        ("ADDED", 0, report(2, censored=True, late=True), "it had no block ready, but the switch saw one (ADDED)"),
        ("ADDED", 300_000, report(2), "it was 0 ms after worker 0, but the switch saw it 300 ms after"),
        ("ADDED", 300_000, report(2, 0.008), "it was 2 ms before worker 0, but the switch saw it 300 ms after"),
    ],
)
@pytest.mark.parametrize("digest_first", [True, False])
def test_disagreeing_views_are_counted_and_described(
    verdict: str, timestamp_us: int, said: pb.Report, words: str, digest_first: bool
) -> None:
    taken = agreeing_start()
    taken.arrival(arrival(0, 2), now_s=0.0)
    taken.report(0, report(2), now_s=0.0)
    steps = [
        lambda: taken.arrival(arrival(1, 2, verdict, timestamp_us), now_s=0.0),
        lambda: taken.report(1, said, now_s=0.0),
    ]
    for step in steps if digest_first else reversed(steps):
        step()
    assert taken.views.count == [0, 1]
    assert words in taken.views.latest[1]


def test_late_worker_that_both_sides_call_late_is_no_disagreement() -> None:
    taken = agreeing_start()
    taken.arrival(arrival(1, 2, "LATE", timestamp_us=900_000), now_s=0.0)
    taken.report(1, report(2, late=True), now_s=0.0)
    taken.arrival(
        arrival(1, 3, timestamp_us=5_000_000), now_s=0.0
    )  # it starts later than the others, so times tell nothing
    taken.report(1, report(3), now_s=0.0)
    assert taken.views.count == [0, 0]


def test_block_that_the_switch_never_saw_is_counted() -> None:
    taken = agreeing_start()
    taken.report(1, report(2), now_s=0.0)
    taken.report(1, report(3, late=True), now_s=0.0)  # being late, it need not have been seen
    assert taken.views.count == [0, 0]  # the digest may still arrive
    taken.arrival(arrival(1, 4), now_s=0.0)
    assert taken.views.count == [0, 1]
    assert "iteration 2" in taken.views.latest[1]
    assert "the switch never saw it" in taken.views.latest[1]


def test_no_block_is_called_missing_without_digests() -> None:
    taken = Measurements(workers=1, window=4)
    for iteration in range(1, 4 * KEPT):
        taken.report(0, report(iteration), now_s=0.0)
    assert taken.views.count == [0]
