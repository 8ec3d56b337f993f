"""The slot model's lanes: summed as numbers, at every width, and cut off where they do not fit."""

import numpy as np
import pytest

from kofn.host.kernels.lanes import width_of
from kofn.host.protocol.slot_model import SlotModel, to_numbers, to_values
from kofn.host.wire.packet import Kind, KofnHeader, Lanes
from tests.host import part_rules


@pytest.mark.parametrize("lanes", range(4))
def test_sums_in_lanes_of_every_width(lanes: int) -> None:
    half = 2 ** (width_of(lanes) - 1)
    addends = np.random.default_rng(lanes).integers(-half, half, (3, 2048 // width_of(lanes)))
    switch = SlotModel(workers=3, k=3, slots=1)
    for worker, addend in enumerate(addends):
        values = to_values(addend, lanes)
        assert len(values) == 256
        assert np.array_equal(to_numbers(values, lanes), addend)
        answers = switch.handle(KofnHeader(worker=worker, lanes=lanes, flags=worker), values)
    wrapped = (addends.sum(axis=0) + half) % (2 * half) - half
    for _, answer, values in answers:
        assert np.array_equal(to_numbers(values, lanes), wrapped)
        assert (answer.kind, answer.lanes, answer.flags) == (Kind.RESULT, lanes, 2), "the flags of who closed it"


@pytest.mark.parametrize("workers", range(1, 65))
def test_votes_are_counted_in_planes(workers: int) -> None:
    """Every count occurs, so ties do."""
    votes = np.arange(2 * 2048) % (workers + 1) > np.arange(workers)[:, None]
    planes, counted = workers.bit_length(), votes.sum(axis=0)
    switch = SlotModel(workers=workers, k=workers, slots=1)
    for worker, bits in enumerate(votes):
        answers = switch.handle(KofnHeader(worker=worker, lanes=Lanes.VOTES, words=2), np.packbits(bits).tobytes())
    assert len(answers) == workers
    _, answer, values = answers[-1]
    found = np.unpackbits(np.frombuffer(values, np.uint8)).astype(np.int64)
    assert answer.words == 2 * planes
    assert np.array_equal((found.reshape(planes, -1) << np.arange(planes)[:, None]).sum(axis=0), counted)


def test_words_behind_the_votes_are_room_for_planes() -> None:
    switch = SlotModel(workers=3, k=1, slots=1)
    (first, *_) = switch.handle(KofnHeader(lanes=Lanes.VOTES, words=10), bytes([255] * 1024 + [7] * 1536))
    assert (first[1].words, first[2]) == (10, bytes([255] * 1024 + [0] * 1024 + [7] * 512))


def test_the_first_nibble_of_a_byte_is_the_first_lane() -> None:
    assert to_values(np.array([1, -1, 7, -8]), 3) == b"\x1f\x78"
    assert to_values(np.array([-2, 3]), 1) == b"\xff\xfe\x00\x03"


class Model:
    """The slot model, as part_rules has it."""

    generation = 0

    def begin(self, k: int) -> None:
        self.rules = SlotModel(workers=part_rules.WORKERS, k=k, slots=1)

    def set_k(self, k: int) -> None:
        self.rules.k = k

    def send(self, header: KofnHeader, values: bytes) -> part_rules.Told:
        return {rank: (answer, sums) for rank, answer, sums in self.rules.handle(header, values)}


@pytest.fixture
def slots() -> Model:
    return Model()


class TestPartsInTheModel(part_rules.PartRules):
    pass


def test_room_may_be_another_than_the_number_of_workers() -> None:
    rules = SlotModel(workers=2, k=2, slots=1, room=3)
    merged = KofnHeader(worker=0, part=1, count=0, scale=1)
    assert rules.handle(merged, bytes(256)) == []
    assert rules.handle(merged._replace(worker=1), bytes(256)) == []
    for worker in (0, 1):
        answers = rules.handle(KofnHeader(worker=worker, scale=1), bytes(256))
    assert {(answer.members, answer.count) for _, answer, _ in answers} == {(0b11 | 1 << 64, 2)}
