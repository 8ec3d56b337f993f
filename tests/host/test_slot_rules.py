"""The slot model's lanes: summed as numbers, at every width, and cut off where they do not fit."""

import numpy as np
import pytest

from host.shape import width_of
from host.slot_rules import SlotRules, to_numbers, to_values
from host.wire import Header, Kind


@pytest.mark.parametrize("lanes", range(4))
def test_sums_in_lanes_of_every_width(lanes: int) -> None:
    half = 2 ** (width_of(lanes) - 1)
    addends = np.random.default_rng(lanes).integers(-half, half, (3, 2048 // width_of(lanes)))
    switch = SlotRules(workers=3, k=3, slots=1)
    for worker, addend in enumerate(addends):
        values = to_values(addend, lanes)
        assert len(values) == 256
        assert np.array_equal(to_numbers(values, lanes), addend)
        answers = switch.handle(Header(worker=worker, lanes=lanes, flags=worker), values)
    wrapped = (addends.sum(axis=0) + half) % (2 * half) - half
    for _, answer, values in answers:
        assert np.array_equal(to_numbers(values, lanes), wrapped)
        assert (answer.kind, answer.lanes, answer.flags) == (Kind.RESULT, lanes, 2), "the flags of who closed it"


def test_the_first_nibble_of_a_byte_is_the_first_lane() -> None:
    assert to_values(np.array([1, -1, 7, -8]), 3) == b"\x1f\x78"
    assert to_values(np.array([-2, 3]), 1) == b"\xff\xfe\x00\x03"
