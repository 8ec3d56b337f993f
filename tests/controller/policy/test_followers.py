"""Tests of the choice of a worker's peer, and of the news of links for the workers."""

import numpy as np
import pytest

from kofn_common.config.policy import PolicySection
from kofn_controller.estimate.links import LinkDelays
from kofn_controller.job.link_news import LinkNews
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.followers import peers_of

YES = np.ones(4, np.bool_)


@pytest.mark.parametrize(
    ("slow", "k", "expected"),
    [
        ([0, 0, 0, 1], 3, [-1, -1, -1, 0]),
        ([0, 0, 0, 1], 4, [-1, -1, -1, -1]),  # the sums wait for it
        ([1, 0, 1, 0], 2, [1, -1, 3, -1]),
        ([1, 0, 1, 1], 2, [1, -1, 1, 1]),
        ([1, 1, 1, 1], 2, [-1, -1, -1, -1]),  # no peer has a fast link
    ],
)
def test_workers_with_slow_links_share_the_others(slow: list[int], k: int, expected: list[int]) -> None:
    assert peers_of(np.array(slow, np.bool_), YES, YES, k).tolist() == expected


def test_only_live_workers_that_can_follow_do() -> None:
    slow = np.array([False, False, True, True])
    assert peers_of(slow, np.array([True, True, True, False]), YES, 3).tolist() == [-1, -1, 0, -1]
    assert peers_of(slow, YES, np.array([False, True, True, False]), 1).tolist() == [-1, -1, 1, -1]


def test_workers_are_told_what_has_changed() -> None:
    loop, news = ControlLoop(workers=3, policy=PolicySection(objective="fixed:2")), LinkNews()
    assert list(news.changes(loop)) == []
    delays_s = np.array([0, 0, 0.1])
    loop.links = LinkDelays(delays_s=delays_s, slow=delays_s > 0, usual_s=1e-3, fence_s=2e-3)
    loop.follows[:] = True
    ((rank, link),) = news.changes(loop)
    assert (rank, link.delay_s, link.usual_s, link.fence_s, link.peer) == (2, 0.1, 1e-3, 2e-3, 0)
    assert news.followers == {2}
    loop.links = LinkDelays(delays_s=2 * delays_s, slow=delays_s > 0, usual_s=1e-3, fence_s=2e-3)
    assert list(news.changes(loop)) == [], "the worker measures its delay"
    loop.links = LinkDelays.unknown(3)
    ((rank, link),) = news.changes(loop)
    assert (rank, link.delay_s, link.HasField("peer")) == (2, 0, False)
    assert not news.followers


def test_process_that_stays_is_told_again_by_a_new_controller_and_a_new_process_is_as_others() -> None:
    loop, news = ControlLoop(workers=2, policy=PolicySection(objective="fixed:1")), LinkNews()
    news.attached(0, new=True)
    news.attached(1, new=False)
    assert [(rank, link.delay_s, link.HasField("peer")) for rank, link in news.changes(loop)] == [(1, 0, False)]
    assert list(news.changes(loop)) == []


def test_worker_that_was_lost_follows_no_peer_when_it_is_back() -> None:
    loop, news = ControlLoop(workers=3, policy=PolicySection(objective="fixed:1")), LinkNews()
    slow = np.array([False, False, True])
    loop.follows[:] = True
    loop.links = LinkDelays(delays_s=0.1 * slow, slow=slow, usual_s=1e-3, fence_s=2e-3)
    assert [rank for rank, _ in news.changes(loop)] == [2]
    for new in (True, False):
        news.attached(2, new=new)
        assert not news.followers
        assert [(rank, link.peer) for rank, link in news.changes(loop)] == [(2, 0)]
