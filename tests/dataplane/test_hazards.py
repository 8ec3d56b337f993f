"""The four faults of published k-of-n switches, packet by packet on real switches.

tests/host/agent/test_hazards.py has the same on the slot model.
"""

import numpy as np
import pytest

from kofn_common.wire.packet import Kind
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import Answer, contribution, parse

pytestmark = pytest.mark.root

VALUES = np.random.default_rng(7).integers(-(2**28), 2**28, (HOSTS, 256))
EVERYONE = {1, 2, 3, 4}


def contribute(plane: DataPlane, worker: int, iteration: int) -> dict[int, Answer]:
    """Contribute to block 0 of an iteration, in one slot for all iterations; return the answers by port."""
    received = plane.lab.exchange(*contribution(worker, iteration, 0, VALUES[worker], weight=10 + worker))
    assert all(len(frames) == 1 for frames in received.values())
    return {port: parse(frames[0]) for port, frames in received.items()}


def assert_sum(answers: dict[int, Answer], kind: Kind, ports: set[int], ranks: list[int]) -> None:
    """Check that exactly these ports got the sum of these ranks."""
    assert answers.keys() == ports
    for answer in answers.values():
        assert (answer.kind, answer.header.count) == (kind, len(ranks))
        assert answer.header.weight == sum(10 + rank for rank in ranks)
        assert answer.header.members == sum(1 << rank for rank in ranks)
        assert np.array_equal(answer.values, VALUES[ranks].sum(axis=0))


def assert_stale(answers: dict[int, Answer], port: int) -> None:
    assert {to: answer.kind for to, answer in answers.items()} == {port: Kind.STALE}


def test_late_packet_does_not_reopen_a_finished_slot(plane: DataPlane) -> None:
    plane.install(k=2)
    assert contribute(plane, 0, 1) == {}
    assert_sum(contribute(plane, 1, 1), Kind.RESULT, EVERYONE, [0, 1])
    for late in (2, 3, 2):
        assert_sum(contribute(plane, late, 1), Kind.LATE, {late + 1}, [0, 1])


def test_skipped_workers_bit_does_not_reach_the_next_block(plane: DataPlane) -> None:
    plane.install(k=2)
    contribute(plane, 0, 1)
    contribute(plane, 1, 1)
    assert_sum(contribute(plane, 2, 1), Kind.LATE, {3}, [0, 1])
    assert contribute(plane, 2, 2) == {}
    assert_sum(contribute(plane, 0, 2), Kind.RESULT, EVERYONE, [0, 2])
    assert plane.count() == {"OPENED": 2, "CLOSED": 2, "LATE": 1}


def test_late_packet_does_not_wipe_an_open_sum(plane: DataPlane) -> None:
    plane.install(k=3)
    assert contribute(plane, 0, 2) == {}
    assert_stale(contribute(plane, 3, 1), 4)
    assert contribute(plane, 1, 2) == {}
    assert_stale(contribute(plane, 3, 1), 4)
    assert_sum(contribute(plane, 2, 2), Kind.RESULT, EVERYONE, [0, 1, 2])


@pytest.mark.parametrize("behind", [2, 4, 256, 65536])
def test_worker_several_rounds_behind_is_not_taken_for_a_current_one(plane: DataPlane, behind: int) -> None:
    """One-bit versions repeat after two rounds; block ids never repeat."""
    plane.install(k=2)
    assert contribute(plane, 0, 1 + behind) == {}
    assert_stale(contribute(plane, 3, 1), 4)
    assert_sum(contribute(plane, 1, 1 + behind), Kind.RESULT, EVERYONE, [0, 1])
    assert_stale(contribute(plane, 3, 1), 4)
