"""What is sent again where nothing is lost, and where something is: cores over links of a rate, in virtual time."""

import pytest

from tests.host.protocol.timed import TimedJob

HELD_UP = {2: [(0.010, 0.030)]}
"""A worker that waits for a processor in mid-iteration, longer than answers ever take."""

LATE = {3: [(0.0, 0.030)]}
"""One that is late at the beginning."""

WITHOUT_LOSS_S = 0.043
"""What comes down takes so long."""


@pytest.mark.parametrize("mbps", [6, 24])
@pytest.mark.parametrize("owned", [False, True])
def test_nothing_is_sent_again_while_packets_wait_in_links_that_are_full(owned: bool, mbps: float) -> None:
    """Of owned blocks all workers' are in each one's link: an answer takes many times as long as the soonest one."""
    job = TimedJob(owned=owned, mbps=mbps)
    assert job.run() < 1.01 * WITHOUT_LOSS_S * 24 / mbps
    assert job.again == 0


@pytest.mark.parametrize(("owned", "away", "most"), [(False, HELD_UP, 21), (True, HELD_UP, 9), (False, LATE, 45)])
def test_one_that_is_away_is_asked_for_and_the_rest_is_not_sent_again(
    owned: bool, away: dict[int, list[tuple[float, float]]], most: int
) -> None:
    """Each of the three others repeats 1, 2, 4 or 8 requests in its silences, and nothing once that is over."""
    job = TimedJob(owned=owned, away=away)
    job.run()
    assert 0 < job.again <= most


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("owned", [False, True])
def test_what_is_lost_is_there_soon_and_little_else_is_sent_again(owned: bool, seed: int) -> None:
    """Every twentieth packet.  Of a sum that is lost on its way up all send theirs again, of an owned block few."""
    job = TimedJob(owned=owned, loss=0.05, seed=seed)
    assert job.run() < 2 * WITHOUT_LOSS_S
    assert job.again <= (2 if owned else 3) * job.lost
