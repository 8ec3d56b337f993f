"""When the controller decides."""

from itertools import pairwise

from kofn_controller.policy.decision_pacer import DECISION_SHARE, QUIET_S, UNDECIDED_S, DecisionPacer


def test_decision_waits_until_no_worker_reports() -> None:
    pause = DecisionPacer()
    assert pause.now(50.0)
    pause.reported(50.0)
    assert [pause.now(50.0 + QUIET_S * share) for share in (0.0, 0.9, 1.1)] == [False, False, True]


def test_decision_does_not_wait_for_ever() -> None:
    """A report comes every two milliseconds."""
    pause, moments = DecisionPacer(), list[float]()
    for number in range(1000):
        pause.reported(50 + 0.002 * number)
        if pause.now(50 + 0.002 * number):
            moments.append(0.002 * number)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(gaps) > 10
    assert all(UNDECIDED_S - 1e-9 <= gap <= UNDECIDED_S + 0.002 + 1e-9 for gap in gaps)


def test_decisions_leave_most_of_the_time_to_other_tasks() -> None:
    pause = DecisionPacer()
    assert pause.now(50.0)
    pause.decided(50.0, 50.004)
    rest_s = 0.004 / DECISION_SHARE
    assert not pause.now(50.004 + 0.99 * rest_s)
    assert pause.now(50.004 + 1.01 * rest_s)
