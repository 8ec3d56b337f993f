"""Iteration times for each k, and what comes after the first blocks."""

import math

import pytest

from controller.pace import KEPT, OVERHEAD_MAX_S, Pace


def test_an_iteration_counts_for_the_k_that_was_in_force_at_both_ends() -> None:
    pace = Pace()
    for iteration, k, now_s in [(1, 4, 10.0), (2, 4, 10.5), (3, 3, 11.5), (4, 3, 11.7), (5, 3, 11.8)]:
        pace.ended(iteration, k, now_s)
    assert (pace.measured(4).mean_s, pace.measured(4).iterations) == (pytest.approx(0.5), 1)
    assert (pace.measured(3).mean_s, pace.measured(3).iterations) == (pytest.approx(0.15), 2)
    assert (pace.measured(2).mean_s, pace.measured(2).iterations) == (0.0, 0)


def test_iterations_that_ended_unseen_share_the_time() -> None:
    pace = Pace()
    pace.ended(10, 2, 1.0)
    pace.ended(13, 2, 1.6)
    assert (pace.measured(2).mean_s, pace.measured(2).iterations) == (pytest.approx(0.2), 3)
    pace.ended(10**9, 2, 2.0)
    assert pace.measured(2).iterations == KEPT


def test_the_past_is_forgotten() -> None:
    pace = Pace()
    for iteration in range(3 * KEPT):
        pace.ended(iteration, 1, float(min(iteration, KEPT)))
    assert pace.measured(1).mean_s == 0.0


def test_the_last_to_come_says_what_comes_after() -> None:
    pace = Pace()
    assert pace.overhead_s == 0.0
    reports = [(1, 0.009), (1, 0.004), (1, 0.011), (2, 0.008), (2, 0.006), (1, 0.001), (3, 0.005)]
    for iteration, after_s in reports:
        pace.followed(iteration, after_s)
    assert pace.overhead_s == pytest.approx(0.005), "of iterations 1 and 2; 3 may not be complete"


@pytest.mark.parametrize("absurd", [math.nan, math.inf, -1.0, 0.0, 2 * OVERHEAD_MAX_S])
def test_absurd_times_are_no_measurement(absurd: float) -> None:
    pace = Pace()
    pace.followed(1, absurd)
    pace.followed(2, absurd)
    pace.followed(3, absurd)
    assert pace.overhead_s == 0.0
