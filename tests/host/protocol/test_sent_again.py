"""Retransmissions with and without loss: cores over links of limited rate, in virtual time."""

import pytest

from tests.host.protocol.timed import TimedJob

pytestmark = pytest.mark.slow

HELD_UP = {2: [(0.010, 0.030)]}
"""A worker that is descheduled in mid-iteration, longer than answers ever take."""

LATE = {3: [(0.0, 0.030)]}
"""A worker that is late at the beginning."""

WITHOUT_LOSS_S = 0.0435
"""How long the results take on the downlink."""


@pytest.mark.parametrize("mbps", [pytest.param(6, marks=pytest.mark.long), 24])
@pytest.mark.parametrize("owned", [False, True])
def test_nothing_is_retransmitted_while_packets_wait_in_full_links(owned: bool, mbps: float) -> None:
    """With owned blocks all workers' blocks share each downlink: an answer takes many times as long
    as the soonest one.
    """
    job = TimedJob(owned=owned, mbps=mbps)
    assert job.run() < 1.01 * WITHOUT_LOSS_S * 24 / mbps
    assert job.again == 0


@pytest.mark.parametrize(("owned", "away", "most"), [(False, HELD_UP, 21), (True, HELD_UP, 9), (False, LATE, 45)])
def test_only_the_absent_workers_blocks_are_probed(
    owned: bool, away: dict[int, list[tuple[float, float]]], most: int
) -> None:
    """Each of the three others probes with 1, 2, 4 or 8 requests during its silences, and with none afterwards."""
    job = TimedJob(owned=owned, away=away)
    job.run()
    assert 0 < job.again <= most


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("owned", [False, True])
def test_lost_blocks_are_recovered_soon_with_few_other_retransmissions(owned: bool, seed: int) -> None:
    """Every twentieth packet is lost. For a sum lost on its way up all workers retransmit, for an owned block few."""
    job = TimedJob(owned=owned, loss=0.05, seed=seed)
    assert job.run() < 2 * WITHOUT_LOSS_S
    assert job.again <= (2 if owned else 3) * job.lost
