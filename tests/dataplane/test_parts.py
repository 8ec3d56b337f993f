"""Several contributions of one worker to one block, on real switches."""

import pytest

from kofn_common.wire.packet import KofnHeader
from tests.dataplane.conftest import DataPlane
from tests.dataplane.frames import GENERATION, frame, parse
from tests.host.part_rules import PartRules, Told

pytestmark = pytest.mark.root


class Switch:
    """The interface of part_rules to a real switch."""

    generation = GENERATION

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    def begin(self, k: int) -> None:
        self._plane.install(k=k)

    def set_k(self, k: int) -> None:
        self._plane.set_k(k)

    def send(self, header: KofnHeader, values: bytes) -> Told:
        port = header.worker + 1
        received = self._plane.lab.exchange(port, frame(port, header, values))
        answers = {to - 1: parse(one) for to, (one,) in received.items()}
        return {rank: (answer.header, answer.values.astype(">i4").tobytes()) for rank, answer in answers.items()}


@pytest.fixture
def slots(plane: DataPlane) -> Switch:
    return Switch(plane)


class TestPartsInASwitch(PartRules):
    pass
