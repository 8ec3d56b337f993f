"""The status says what a worker's slow link does."""

import numpy as np
import pytest

from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.links import LinkDelays
from kofn_controller.job.status_message import status_message
from kofn_controller.policy.control_loop import ControlLoop

SLOW = np.array([False, False, True])


def loop(*, k: int, mbps: float = 9.8) -> ControlLoop:
    made = ControlLoop(workers=3, policy=PolicySection(objective=f"fixed:{k}"))
    made.follows[:] = True
    made.links = LinkDelays(delays_s=0.118 * SLOW, slow=SLOW, usual_s=1e-3, fence_s=2e-3)
    for iteration in (1, 2):
        slow = pb.Report(link_wait_s=0.119, link_mbps=mbps, link_backlog_s=0.002, late=True)
        for rank, report in enumerate((pb.Report(), pb.Report(), slow)):
            report.iteration, report.first_block_s = iteration, 0.01
            assert made.report(rank, report, iteration + rank / 100)
    return made


def test_worker_that_follows_a_peer_is_named_with_the_rate_and_the_backlog_of_its_link() -> None:
    others, slow = status_message(loop(k=2)).worker[:2], status_message(loop(k=2)).worker[2]
    assert all(not worker.link and not worker.link_mbps and not worker.HasField("peer") for worker in others)
    assert (slow.link_mbps, slow.link_backlog_s, slow.transfer_s, slow.peer) == (9.8, 0.002, 0.118, 0)
    assert slow.link == (
        "its slow link passes 9.8 Mbit/s, which delays a gradient by 118 ms; packets wait 2 ms in the link; results"
        " come from worker 0; late by its link"
    )


def test_sums_that_wait_for_the_worker_send_it_their_results() -> None:
    slow = status_message(loop(k=3)).worker[2]
    assert not slow.HasField("peer")
    assert "results come from the switch" in slow.link


@pytest.mark.parametrize(("field", "value"), [("link_mbps", -1.0), ("link_mbps", 1e9), ("link_backlog_s", np.nan)])
def test_impossible_numbers_of_a_link_are_refused(field: str, value: float) -> None:
    report = pb.Report(iteration=3, first_block_s=0.01, **{field: value})  # type: ignore[arg-type]
    assert not loop(k=2).report(2, report, 9.0)
