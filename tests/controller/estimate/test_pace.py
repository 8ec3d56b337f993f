"""Iteration times for each k, and the overhead after the first blocks."""

import math

import numpy as np
import pytest

from kofn_controller.estimate.pace import KEPT, OVERHEAD_MAX_S, Pace

NO_TRANSFERS = np.zeros(3)


def test_iteration_counts_for_the_k_in_force_at_both_ends() -> None:
    pace = Pace(workers=4)
    for iteration, k, now_s in [(1, 4, 10.0), (2, 4, 10.5), (3, 3, 11.5), (4, 3, 11.7), (5, 3, 11.8)]:
        pace.ended(iteration, k, "merge", now_s)
    assert (pace.measured(4, "merge").mean_s, pace.measured(4, "merge").iterations) == (pytest.approx(0.5), 1)
    assert (pace.measured(3, "merge").mean_s, pace.measured(3, "merge").iterations) == (pytest.approx(0.15), 2)
    assert (pace.measured(2, "merge").mean_s, pace.measured(2, "merge").iterations) == (0.0, 0)


def test_each_rule_has_its_own_times_and_the_newest_iteration_is_known() -> None:
    pace = Pace(workers=4)
    for iteration, rule, now_s in [(1, "merge", 1.0), (2, "merge", 2.0), (3, "async", 7.0), (4, "async", 7.5)]:
        pace.ended(iteration, 2, rule, now_s)  # type: ignore[arg-type]
    merge, asynchronous = pace.measured(2, "merge"), pace.measured(2, "async")
    assert (merge.mean_s, merge.iterations, merge.last) == (1.0, 1, 2)
    assert (asynchronous.mean_s, asynchronous.iterations, asynchronous.last) == (0.5, 1, 4)


def test_iterations_that_ended_unseen_share_the_time() -> None:
    pace = Pace(workers=4)
    pace.ended(10, 2, "merge", 1.0)
    pace.ended(13, 2, "merge", 1.6)
    assert (pace.measured(2, "merge").mean_s, pace.measured(2, "merge").iterations) == (pytest.approx(0.2), 3)
    pace.ended(10**9, 2, "merge", 2.0)
    assert pace.measured(2, "merge").iterations == KEPT


def test_old_iterations_are_forgotten() -> None:
    pace = Pace(workers=4)
    for iteration in range(3 * KEPT):
        pace.ended(iteration, 1, "merge", float(min(iteration, KEPT)))
    assert pace.measured(1, "merge").mean_s == 0.0


def follow(pace: Pace, iteration: int, k: int, *reports: tuple[float, ...]) -> None:
    """Report the members of an iteration: (rank, first block, iteration, time of the report: 0) in ms."""
    for rank, first_block_ms, iteration_ms, *said_ms in reports:
        pace.followed(
            int(rank),
            iteration,
            k,
            first_block_s=first_block_ms / 1e3,
            iteration_s=iteration_ms / 1e3,
            now_s=sum(said_ms) / 1e3,
        )


def test_worker_that_started_with_the_others_counts_the_whole_iteration() -> None:
    """Worker 1 gets the parameters 3 ms after worker 0, so it is last in iteration 2 with a first block of 20 ms."""
    pace = Pace(workers=4)
    follow(pace, 1, 2, (0, 20, 25), (1, 20, 28))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx(6.5e-3)
    follow(pace, 2, 2, (0, 20, 28), (1, 20, 28))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx((6.5e-3 + 8e-3) / 2), (
        "the iteration took 28 ms, 20 ms of them until the first block"
    )


def test_least_wait_counts_where_a_late_worker_started_later() -> None:
    pace = Pace(workers=4)
    follow(pace, 1, 2, (0, 20, 25), (1, 20, 25))
    follow(pace, 2, 2, (0, 20, 45), (2, 21, 25))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx((5e-3 + 4e-3) / 2), (
        "worker 2 was the last one, whenever it started"
    )


def test_last_worker_may_have_had_the_parameters_before_or_after_the_others() -> None:
    """Worker 2 was last and got the new parameters first, 3 ms before worker 0, that is 1.5 ms
    before the mean of both.
    """
    pace = Pace(workers=4)
    follow(pace, 1, 2, (0, 20, 25), (1, 20, 25))
    follow(pace, 2, 2, (0, 20, 48, 103), (2, 21, 25, 100))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx((5e-3 + 5.5e-3) / 2)


def test_iteration_without_all_k_reports_is_not_measured() -> None:
    """A worker that was in some blocks only reports that it is late, but may have been the last."""
    pace = Pace(workers=4)
    follow(pace, 1, 2, (0, 20, 25), (1, 20, 25))
    follow(pace, 2, 2, (0, 20, 60))
    follow(pace, 3, 2, (0, 20, 25), (1, 21, 26))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx(5e-3)
    follow(pace, 2, 2, (1, 1, 99))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx(5e-3), "a report of an older iteration does not count"


@pytest.mark.parametrize("absurd", [math.nan, math.inf, -1.0, 0.0, 2 * OVERHEAD_MAX_S])
def test_absurd_times_are_not_measured(absurd: float) -> None:
    pace = Pace(workers=4)
    for iteration in (1, 2, 3):
        pace.followed(0, iteration, 1, first_block_s=0.0, iteration_s=absurd, now_s=0.0)
    assert pace.overhead_s(NO_TRANSFERS) == 0.0


def test_overhead_excludes_the_transfer_of_the_kth_worker() -> None:
    """Worker 2's gradient takes 30 ms more than the others', also before the estimate knows it."""
    pace, transfers_s = Pace(workers=4), np.array([0.0, 0.0, 0.030])
    follow(pace, 1, 3, (0, 20, 55), (1, 11, 55), (2, 12, 55))
    follow(pace, 2, 2, (0, 20, 33), (1, 11, 33))
    assert pace.overhead_s(NO_TRANSFERS) == pytest.approx((35e-3 + 13e-3) / 2)
    assert pace.overhead_s(transfers_s) == pytest.approx(13e-3)


def test_each_missed_iteration_takes_its_time() -> None:
    pace = Pace(workers=4)
    assert pace.catch_up_s == 0.0
    for age, catch_up_s in [(3, 6e-3), (1, 3e-3), (0, 5e-3), (2, 0.0)]:
        pace.caught_up(age, catch_up_s)
    assert pace.catch_up_s == pytest.approx(2.5e-3), "workers that were in time, or do not count, have no catch-up time"
