"""Rules for several contributions of one worker to one block, counted or not, that any slots must obey.

tests/host/protocol/test_slots.py has the slot model and slots.c, tests/dataplane/test_parts.py real switches.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pytest

from kofn_common.wire.packet import Kind, KofnHeader, bit_of, members_of
from kofn_common.wire.sizes import PARTS, WEIGHT_MAX
from kofn_host.kernels.lanes import pack, unpack

WORKERS = 4
LARGEST = (2**31 - 1) // WORKERS
VALUES = np.random.default_rng(5).integers(-LARGEST, LARGEST + 1, (WORKERS, PARTS, 64))
VALUES[:, :, 0], VALUES[:, :, 1] = LARGEST, -LARGEST

Told = dict[int, tuple[KofnHeader, bytes]]
"""Answers by rank."""


class Slots(Protocol):
    """The slots of a job of WORKERS workers."""

    generation: int

    def begin(self, k: int) -> None:
        """Free all slots."""

    def set_k(self, k: int) -> None:
        """Set k from now on."""

    def send(self, header: KofnHeader, values: bytes) -> Told:
        """Send a worker's packet and return the answers."""


@dataclass
class Block:
    """One block of one iteration."""

    slots: Slots
    iteration: int = 1
    block: int = 0

    def give(self, worker: int, part: int = 0, **fields: int) -> Told:
        """Send a counted contribution of 256 * (worker + 1) + part gradients, unless another weight is given."""
        return self._send(worker, pack(VALUES[worker, part].astype(np.int32), 32), part=part, **fields)

    def merge(self, worker: int, part: int = 1, **fields: int) -> Told:
        """Send a contribution that is not counted."""
        return self.give(worker, part, count=0, **fields)

    def pull(self, worker: int) -> Told:
        return self._send(worker, bytes(256), kind=Kind.PULL)

    def _send(self, worker: int, values: bytes, **fields: int) -> Told:
        own = {"job": 1, "worker": worker, "generation": self.slots.generation, "iteration": self.iteration}
        place = {"block": self.block, "slot": 0, "scale": 3, "weight": weight(worker, fields.get("part", 0))}
        return self.slots.send(KofnHeader(**(own | place | fields)), values)


def weight(worker: int, part: int) -> int:
    return 256 * (worker + 1) + part


def assert_sum(told: Told, addends: set[tuple[int, int]], count: int, kind: Kind = Kind.RESULT, **fields: Any) -> None:
    """Check that every answer is the sum of these contributions (worker, part)."""
    assert told.keys() == set(range(WORKERS)) if kind == Kind.RESULT else len(told) == 1
    for header, values in told.values():
        assert (header.kind, header.count) == (kind, count)
        assert header.members == sum(bit_of(worker, part) for worker, part in addends)
        assert members_of(header.members) == sorted({worker for worker, _ in addends})
        assert header.weight == sum(weight(worker, part) for worker, part in addends)
        assert {name: getattr(header, name) for name in fields} == fields
        if kind != Kind.FORMAT_MISMATCH:
            expected = sum(VALUES[worker, part] for worker, part in addends)
            assert np.array_equal(unpack(values, 32), expected)


def assert_full(block: Block, worker: int, part: int = 1, **fields: int) -> None:
    """Check that a merged contribution is not added and gets no answer."""
    assert block.merge(worker, part, **fields) == {}


class PartRules:
    """Tests of the fixture `slots`."""

    @pytest.mark.parametrize("own_first", [True, False])
    def test_late_gradient_is_added_beside_its_workers_own(self, slots: Slots, own_first: bool) -> None:
        slots.begin(k=2)
        block = Block(slots)
        for give in (block.give, block.merge) if own_first else (block.merge, block.give):
            for _ in range(2):  # each one is deduplicated separately
                assert give(0) == {}
        assert block.pull(3) == {}
        assert_sum(block.give(1), {(0, 0), (0, 1), (1, 0)}, 2)
        for again in (block.merge(0), block.give(0), block.merge(3), block.pull(3)):
            assert_sum(again, {(0, 0), (0, 1), (1, 0)}, 2, Kind.LATE)

    def test_uncounted_contribution_claims_a_slot_and_never_closes_it(self, slots: Slots) -> None:
        slots.begin(k=1)
        block = Block(slots)
        for _ in range(3):
            assert block.merge(2) == {}
        assert block.merge(1, part=3) == {}
        assert block.pull(0) == {}
        assert_sum(block.give(3), {(2, 1), (1, 3), (3, 0)}, 1)

    def test_uncounted_contribution_claims_the_slot_of_an_older_block(self, slots: Slots) -> None:
        """The older block's merged contributions take no room in it."""
        slots.begin(k=2)
        Block(slots).merge(0)
        Block(slots).merge(1)
        later = Block(slots, iteration=2)
        for worker in (0, 1):
            assert later.merge(worker) == {}
        assert {header.kind for header, _ in Block(slots).give(0).values()} == {Kind.STALE}
        assert later.give(3) == {}
        assert_sum(later.give(2), {(0, 1), (1, 1), (2, 0), (3, 0)}, 2)

    def test_nothing_is_merged_with_k_n(self, slots: Slots) -> None:
        """No slot is claimed either, so an older block may still come."""
        slots.begin(k=WORKERS)
        later, block = Block(slots, iteration=2), Block(slots)
        assert_full(later, 0)
        assert block.give(0) == {}
        assert_full(block, 0)
        for worker in (1, 2):
            assert block.give(worker) == {}
        assert_full(block, 1)
        assert_sum(block.give(3), {(0, 0), (1, 0), (2, 0), (3, 0)}, 4)

    def test_k_counted_contributions_always_have_room(self, slots: Slots) -> None:
        slots.begin(k=2)
        block = Block(slots)
        assert block.merge(0) == {}
        assert block.give(0) == {}
        assert block.merge(0, part=2) == {}
        for part in (1, 3):
            assert_full(block, 1, part)
        assert_sum(block.give(1), {(0, 0), (0, 1), (0, 2), (1, 0)}, 2)

    def test_room_for_merging_follows_the_packets_k(self, slots: Slots) -> None:
        slots.begin(k=2)
        block = Block(slots)
        assert block.merge(0, k=2) == {}
        assert_full(block, 1, k=3)
        assert block.merge(1, k=2) == {}
        assert block.give(2, k=2) == {}
        assert_sum(block.give(3, k=2), {(0, 1), (1, 1), (2, 0), (3, 0)}, 2, k=2)

    def test_raised_k_closes_a_block_without_room(self, slots: Slots) -> None:
        """All lanes have the largest or the smallest value that workers may send: one more would overflow."""
        slots.begin(k=1)
        block = Block(slots)
        for worker in (0, 1, 2):
            assert block.merge(worker) == {}
        assert_full(block, 3)
        slots.set_k(WORKERS)
        assert_full(block, 3)
        assert block.merge(0) == {}, "a duplicate gets no answer"
        assert_sum(block.give(0), {(0, 0), (0, 1), (1, 1), (2, 1)}, 1, k=WORKERS)
        assert_sum(block.give(1), {(0, 0), (0, 1), (1, 1), (2, 1)}, 1, Kind.LATE)

    def test_raised_k_waits_for_one_more_contribution(self, slots: Slots) -> None:
        slots.begin(k=2)
        block = Block(slots)
        for worker in (0, 1):
            assert block.merge(worker) == {}
        slots.set_k(3)
        assert block.give(0) == {}
        assert block.give(0) == {}
        assert_sum(block.give(3), {(0, 0), (0, 1), (1, 1), (3, 0)}, 2, k=3)

    def test_lowered_k_closes_a_block_with_the_next_packet(self, slots: Slots) -> None:
        """A duplicate closes the block, even of an uncounted contribution."""
        slots.begin(k=3)
        block = Block(slots)
        assert block.merge(0) == {}
        assert block.give(1) == {}
        slots.set_k(1)
        assert_sum(block.merge(0), {(0, 1), (1, 0)}, 1, k=1)

    def test_one_worker_may_give_all_counted_contributions(self, slots: Slots) -> None:
        slots.begin(k=3)
        block = Block(slots)
        for part in (3, 0):
            for _ in range(2):
                assert block.give(2, part) == {}
        assert_sum(block.give(2, 1), {(2, 0), (2, 1), (2, 3)}, 3)
        later = Block(slots, iteration=2)
        assert [later.give(2, 0), later.give(0, 0)] == [{}, {}]
        assert_sum(later.give(2, 1), {(2, 0), (2, 1), (0, 0)}, 3)

    def test_part_is_added_once_counted_or_not(self, slots: Slots) -> None:
        slots.begin(k=2)
        block = Block(slots)
        assert block.merge(0, part=2) == {}
        for _ in range(2):
            assert block.give(0, part=2) == {}
        assert block.give(1) == {}
        assert block.merge(1, part=0) == {}
        assert_sum(block.give(3), {(0, 2), (1, 0), (3, 0)}, 2)

    def test_weights_add_up(self, slots: Slots) -> None:
        slots.begin(k=2)
        block = Block(slots)
        assert block.give(0, weight=1) == {}
        assert block.merge(0, weight=WEIGHT_MAX) == {}
        assert block.merge(0, weight=WEIGHT_MAX) == {}
        told = block.give(1, weight=WEIGHT_MAX)
        assert {header.weight for header, _ in told.values()} == {2 * WEIGHT_MAX + 1}

    def test_answers_describe_the_sum_and_repeat_the_part(self, slots: Slots) -> None:
        slots.begin(k=2)
        block = Block(slots)
        assert block.merge(3, part=3) == {}
        assert block.give(0, part=2) == {}
        inside = {(3, 3), (0, 2)}
        assert_sum(block.give(1, part=1, scale=4), inside, 1, Kind.FORMAT_MISMATCH, part=1, scale=3, flags=0)
        assert_sum(block.merge(1, part=2, scale=4), inside, 1, Kind.FORMAT_MISMATCH, part=2, scale=3)
        assert_sum(block.give(2), inside | {(2, 0)}, 2)
        assert_sum(block.merge(1, part=1), inside | {(2, 0)}, 2, Kind.LATE, part=1)
        Block(slots, iteration=2).give(0)
        ((header, _),) = block.merge(2, part=3, weight=77).values()
        assert (header.kind, header.part, header.weight, header.count) == (Kind.STALE, 3, 77, 0)
