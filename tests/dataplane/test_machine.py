"""The protocol's state machine once more, with a real switch beside the slot model: every answer is the same.

Packets leave each worker's own port as raw frames.  A new example begins a new generation in the slots as the last one
left them.
"""

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import settings

from host.slot_rules import Answer, SlotRules, to_numbers, to_values
from host.wire import Header, Kind
from tests.dataplane.conftest import HOSTS, DataPlane
from tests.dataplane.frames import frame, parse
from tests.host.test_protocol_machine import ProtocolMachine
from tests.host.world import LANES

pytestmark = pytest.mark.root

EXAMPLES = 25
GENERATIONS_EACH = 1000


class Mirror(SlotRules):
    """The slot model, and a real switch that must answer as it does."""

    plane: DataPlane
    examples = 0
    kinds: ClassVar[Counter[str]] = Counter()

    def __init__(self, *, workers: int, k: int, slots: int) -> None:
        Mirror.examples += 1
        self._first_generation = Mirror.examples * GENERATIONS_EACH
        super().__init__(workers=workers, k=k, slots=slots)

    def __setattr__(self, name: str, value: Any) -> None:
        """What the controller would bring to the switch: k, and the generation that it admits (-1: none)."""
        before = getattr(self, name, None)
        super().__setattr__(name, value)
        if name == "k" and before not in (None, value):
            self.plane.set_k(value)
        elif name == "slots" or (name == "generation" and hasattr(self, "slots")):
            self.plane.put_job(k=self.k, generation=self._real(self.generation), slots=len(self.slots))

    def _real(self, generation: int) -> int:
        return self._first_generation + generation % GENERATIONS_EACH

    def handle(self, header: Header, values: bytes) -> list[Answer]:
        expected = super().handle(header, values)
        port = header.worker + 1
        sent = frame(
            port, header._replace(generation=self._real(header.generation)), values.ljust(256 * header.words, b"\0")
        )
        received = self.plane.lab.exchange(port, sent)
        answers = {to - 1: parse(frames[0]) for to, frames in received.items() if to <= self.workers}
        assert all(len(frames) == 1 for frames in received.values())
        assert answers.keys() == {rank for rank, *_ in expected}
        for rank, model, sums in expected:
            real = answers[rank]
            assert real.header._replace(checksum=0, generation=model.generation) == model
            if model.kind in (Kind.RESULT, Kind.LATE):
                summed = to_values(to_numbers(sums, model.lanes)[:LANES], model.lanes)
                assert real.values.astype(">i4").tobytes().startswith(summed)
            Mirror.kinds[Kind(model.kind).name] += 1
        return expected


class MirroredMachine(ProtocolMachine):
    switch = Mirror


def test_a_real_switch_answers_as_the_model_does(plane: DataPlane) -> None:
    plane.install(k=HOSTS)
    Mirror.plane = plane
    Mirror.kinds.clear()
    examples = max(EXAMPLES, settings().max_examples // 50)
    MirroredMachine.TestCase.settings = settings(max_examples=examples, stateful_step_count=30)
    MirroredMachine.TestCase("runTest").runTest()
    print(dict(Mirror.kinds))
    assert Mirror.kinds["RESULT"] and Mirror.kinds["LATE"]
