"""The slot model beside a switch, which must give the same answers.

Packets leave each worker's own port as raw frames. A new model starts a new generation in the slots as the last one
left them.
"""

from collections import Counter
from typing import Any, ClassVar

import numpy as np

from kofn_common.wire.packet import WORD_BYTES, Kind, KofnHeader, Lanes
from kofn_host.protocol.slots import Answer
from tests.dataplane.conftest import DataPlane
from tests.dataplane.frames import frame, parse
from tests.host.protocol.specification.slot_model import SlotModel

GENERATIONS_EACH = 1000


class Mirror(SlotModel):
    """The slot model, and a switch that must answer like it."""

    plane: DataPlane
    examples = 0
    kinds: ClassVar[Counter[str]] = Counter()

    def __init__(self, *, workers: int, k: int, slots: int) -> None:
        Mirror.examples += 1
        self._first_generation = Mirror.examples * GENERATIONS_EACH
        super().__init__(workers=workers, k=k, slots=slots)

    def __setattr__(self, name: str, value: Any) -> None:
        """Bring a change to the switch like the controller: k, and the admitted generation (-1: none)."""
        before = getattr(self, name, None)
        super().__setattr__(name, value)
        if name == "k" and before not in (None, value):
            self.plane.set_k(value)
        elif name == "slots" or (name == "generation" and hasattr(self, "slots")):
            self.plane.put_job(
                k=self.k, generation=self._real(self.generation), slots=len(self.slots), workers=self.workers
            )

    def _real(self, generation: int) -> int:
        return self._first_generation + generation % GENERATIONS_EACH

    def handle(self, header: KofnHeader, values: bytes | memoryview) -> list[Answer]:
        expected = super().handle(header, values)
        port = header.worker + 1
        body = bytes(values).ljust(WORD_BYTES * header.words, b"\0")
        received = self.plane.lab.exchange(
            port, frame(port, header._replace(generation=self._real(header.generation)), body)
        )
        answers = {to - 1: parse(frames[0]) for to, frames in received.items() if to <= self.workers}
        assert all(len(frames) == 1 for frames in received.values())
        assert answers.keys() == {rank for rank, *_ in expected}
        for rank, model, sums in expected:
            real = answers[rank]
            assert real.header._replace(checksum=0, generation=model.generation) == model
            if model.kind in (Kind.RESULT, Kind.LATE):
                planes = self.room.bit_length() if model.lanes == Lanes.VOTES else 1
                parts = np.frombuffer(real.values.astype(">i4").tobytes(), np.uint8).reshape(planes, -1)
                assert parts[:, : len(sums) // planes].tobytes() == sums
            Mirror.kinds[Kind(model.kind).name] += 1
        return expected
