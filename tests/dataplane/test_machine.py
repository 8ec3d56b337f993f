"""The protocol's state machine with a switch beside the slot model: every answer is the same."""

import pytest
from hypothesis import settings

from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.mirror import Mirror
from tests.host.protocol.test_protocol_machine import ProtocolMachine

pytestmark = pytest.mark.root

EXAMPLES = 25


class MirroredMachine(ProtocolMachine):
    switch = Mirror


def test_real_switch_answers_like_the_model(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    Mirror.plane = plane
    Mirror.kinds.clear()
    examples = max(EXAMPLES, settings().max_examples // 50)
    MirroredMachine.TestCase.settings = settings(max_examples=examples, stateful_step_count=30)
    MirroredMachine.TestCase("runTest").runTest()
    print(dict(Mirror.kinds))
    assert Mirror.kinds["RESULT"] and Mirror.kinds["LATE"]
