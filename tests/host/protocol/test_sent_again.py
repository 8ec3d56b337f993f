"""What is sent again where nothing is lost, and where something is: cores over links of a rate, in virtual time."""

import pytest

from tests.host.protocol.timed import TimedJob

HELD_UP = {2: [(0.010, 0.030)]}
"""A worker that waits for a processor in mid-iteration, longer than answers ever take."""

LATE = {3: [(0.0, 0.030)]}
"""One that is late at the beginning."""


@pytest.mark.parametrize("mbps", [6, 24])
@pytest.mark.parametrize("owned", [False, True])
def test_nothing_is_sent_again_while_packets_wait_in_links_that_are_full(owned: bool, mbps: float) -> None:
    """Of owned blocks all workers' are in each one's link: an answer takes many times as long as the soonest one."""
    job = TimedJob(owned=owned, mbps=mbps)
    job.run(2)
    assert job.again == 0


@pytest.mark.parametrize(("owned", "away", "most"), [(False, HELD_UP, 21), (True, HELD_UP, 9), (False, LATE, 45)])
def test_one_that_is_away_is_asked_for_and_the_rest_is_not_sent_again(
    owned: bool, away: dict[int, list[tuple[float, float]]], most: int
) -> None:
    """Each of the three others repeats 1, 2, 4 or 8 requests in its silences, and nothing once that is over."""
    job = TimedJob(owned=owned, away=away)
    job.run(2)
    assert 0 < job.again <= most


@pytest.mark.parametrize("seed", range(3))
def test_lost_owned_blocks_are_asked_for_and_others_are_not(seed: int) -> None:
    """Of one that is lost on its way up three ask in vain, as its owner sends it again."""
    job = TimedJob(owned=True, loss=0.05, seed=seed)
    job.run(2)
    assert job.again <= 2 * job.lost


@pytest.mark.parametrize("seed", range(3))
def test_what_is_lost_is_there_soon_all_the_same(seed: int) -> None:
    """Where every twentieth packet is lost, sums and owned blocks take less than twice as long."""
    for owned in (False, True):
        lossless, lossy = TimedJob(owned=owned), TimedJob(owned=owned, loss=0.05, seed=seed)
        assert lossy.run(2) < 2 * lossless.run(2)
