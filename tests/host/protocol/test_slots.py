"""The slots of slots.c and their model in Python obey the rules, and answer any packets alike."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_common.wire.packet import EVERYONE, VERSION, WORD_BYTES, Kind, KofnHeader, Lanes
from kofn_common.wire.sizes import PARTS, RACK_WORKERS_MAX, WEIGHT_MAX, WORDS_MAX
from kofn_host.kernels.lanes import width_of
from kofn_host.protocol.slots import NativeSlots
from tests.host import part_rules
from tests.host.protocol.specification.slot_model import SlotModel, to_numbers, to_values

Open = Callable[..., SlotModel | NativeSlots]


@pytest.fixture(params=[SlotModel, NativeSlots.open], ids=["model", "slots.c"])
def open_slots(request: pytest.FixtureRequest) -> Open:
    opened: Open = request.param
    return opened


@pytest.mark.parametrize("lanes", range(4))
def test_sums_in_lanes_of_every_width(open_slots: Open, lanes: int) -> None:
    half = 2 ** (width_of(lanes) - 1)
    addends = np.random.default_rng(lanes).integers(-half, half, (3, 2048 // width_of(lanes)))
    slots = open_slots(workers=3, k=3, slots=1)
    for worker, addend in enumerate(addends):
        values = to_values(addend, lanes)
        assert len(values) == 256
        assert np.array_equal(to_numbers(values, lanes), addend)
        answers = slots.handle(KofnHeader(worker=worker, lanes=lanes, flags=worker), values)
    wrapped = (addends.sum(axis=0) + half) % (2 * half) - half
    for _, answer, values in answers:
        assert np.array_equal(to_numbers(values, lanes), wrapped)
        assert (answer.kind, answer.lanes, answer.flags) == (Kind.RESULT, lanes, 2), (
            "the answer has the flags of the closing contribution"
        )


@pytest.mark.parametrize("workers", range(1, 65))
def test_votes_are_counted_in_planes(open_slots: Open, workers: int) -> None:
    """Every count occurs."""
    votes = np.arange(2 * 2048) % (workers + 1) > np.arange(workers)[:, None]
    planes, counted = workers.bit_length(), votes.sum(axis=0)
    slots = open_slots(workers=workers, k=workers, slots=1)
    for worker, bits in enumerate(votes):
        answers = slots.handle(KofnHeader(worker=worker, lanes=Lanes.VOTES, words=2), np.packbits(bits).tobytes())
    assert len(answers) == workers
    _, answer, values = answers[-1]
    found = np.unpackbits(np.frombuffer(values, np.uint8)).astype(np.int64)
    assert answer.words == 2 * planes
    assert np.array_equal((found.reshape(planes, -1) << np.arange(planes)[:, None]).sum(axis=0), counted)


def test_words_behind_the_votes_leave_room_for_planes(open_slots: Open) -> None:
    slots = open_slots(workers=3, k=1, slots=1)
    (first, *_) = slots.handle(KofnHeader(lanes=Lanes.VOTES, words=10), bytes([255] * 1024 + [7] * 1536))
    assert (first[1].words, first[2]) == (10, bytes([255] * 1024 + [0] * 1024 + [7] * 512))


def test_first_nibble_of_a_byte_is_the_first_lane() -> None:
    assert to_values(np.array([1, -1, 7, -8]), 3) == b"\x1f\x78"
    assert to_values(np.array([-2, 3]), 1) == b"\xff\xfe\x00\x03"


class Given:
    """The interface of part_rules to these slots."""

    generation = 0

    def __init__(self, open_slots: Open) -> None:
        self._open = open_slots

    def begin(self, k: int) -> None:
        self.rules = self._open(workers=part_rules.WORKERS, k=k, slots=1)

    def set_k(self, k: int) -> None:
        self.rules.k = k

    def send(self, header: KofnHeader, values: bytes) -> part_rules.Told:
        return {rank: (answer, sums) for rank, answer, sums in self.rules.handle(header, values)}


@pytest.fixture
def slots(open_slots: Open) -> Given:
    return Given(open_slots)


class TestParts(part_rules.PartRules):
    pass


def test_room_may_differ_from_the_number_of_workers(open_slots: Open) -> None:
    slots = open_slots(workers=2, k=2, slots=1)
    slots.room = 3
    merged = KofnHeader(worker=0, part=1, count=0, scale=1)
    assert slots.handle(merged, bytes(256)) == []
    assert slots.handle(merged._replace(worker=1), bytes(256)) == []
    for worker in (0, 1):
        answers = slots.handle(KofnHeader(worker=worker, scale=1), bytes(256))
    assert {(answer.members, answer.count) for _, answer, _ in answers} == {(0b11 | 1 << 64, 2)}


def headers(workers: int, lanes: int, words: int) -> st.SearchStrategy[KofnHeader]:
    """Draw packets of any kind, most of which meet in a few blocks of this format."""
    return st.builds(
        KofnHeader,
        version=st.just(VERSION),
        kind=st.sampled_from([Kind.CONTRIBUTE] * 4 + [Kind.PULL]),
        job=st.integers(0, 255),
        worker=st.integers(0, workers - 1),
        rack=st.integers(0, 255),
        recipient=st.sampled_from([EVERYONE] * 4 + [0, workers - 1]),
        lanes=st.sampled_from([lanes] * 19 + [*Lanes]),
        flags=st.integers(0, 15),
        words=st.sampled_from([words] * 19 + [1, WORDS_MAX]),
        k=st.sampled_from([0] * 6 + [1, workers, 2**16 - 1]),
        generation=st.sampled_from([0] * 9 + [1]),
        iteration=st.integers(1, 2),
        block=st.integers(0, 1),
        slot=st.sampled_from([0, 0, 0, 0, 1, 2, 2**16 - 1]),
        checksum=st.integers(0, 2**16 - 1),
        scale=st.sampled_from([0] * 19 + [-1]),
        count=st.sampled_from([0, 1, 1, 3]),
        part=st.integers(0, PARTS - 1),
        bitmaps=st.just(0),
        weight=st.integers(1, WEIGHT_MAX),
        members=st.integers(0, 2**256 - 1),
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4, 7, RACK_WORKERS_MAX]),
    st.sampled_from(Lanes),
    st.sampled_from([1, 4, 6, WORDS_MAX]),
    st.data(),
)
def test_slots_answer_any_packets_like_the_model(workers: int, lanes: int, words: int, data: st.DataObject) -> None:
    """The answers are equal bit by bit, while k and the generation change; the packets' values are noise."""
    k, random = data.draw(st.integers(1, workers)), Random(data.draw(st.integers(0, 2**32 - 1)))
    model, slots = SlotModel(workers=workers, k=k, slots=2), NativeSlots.open(workers=workers, k=k, slots=2)
    for header in data.draw(st.lists(headers(workers, lanes, words), min_size=30, max_size=60)):
        if not random.randrange(20):
            model.k = slots.k = random.randint(1, workers)
            model.generation = slots.generation = random.randint(0, 1)
        values = random.randbytes(header.words * WORD_BYTES)
        assert slots.handle(header, values) == model.handle(header, values)
