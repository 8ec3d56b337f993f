"""Owned blocks carry the arrays unchanged, for any numbers of workers, sizes and slots."""

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_host.collectives.call import Array
from kofn_host.collectives.owned_bytes import OwnedBytes

BLOCK = 64
"""Size of a block in bytes."""

workers_and_slots = st.integers(1, 6).flatmap(lambda workers: st.tuples(st.just(workers), st.integers(workers, 12)))


def carry(every: list[OwnedBytes], most: int) -> None:
    """Exchange all blocks in iterations of at most `most`; each worker has one block of every turn and sends only its
    own.
    """
    span, blocks = every[0].span, range(every[0].blocks)
    most = max(span, most - most % span)
    assert len(blocks) % span == 0
    for part in (blocks[at : at + most] for at in range(0, len(blocks), most)):
        arrived = np.full((len(part), BLOCK), 255, np.uint8)
        owners = every[0].owners(part)
        for at in range(0, len(part), span):
            assert {*owners[at : at + span]} == {*range(len(every))}
        for rank, one in enumerate(every):
            sent = one.encode(part)
            assert (owners[sent.blocks] == rank).all()
            for block, address in zip(sent.blocks.tolist(), sent.addresses.tolist(), strict=True):
                arrived[block] = np.frombuffer(ctypes.string_at(address, BLOCK), np.uint8)
        places = arrived.ctypes.data + BLOCK * np.arange(len(part), dtype=np.uint64)
        for one in every:
            one.decode(part, places)


def drawn(rank: int, size: int) -> Array:
    return np.random.default_rng([rank, size]).integers(0, 1 << 15, size, np.int32)


@given(workers_and_slots, st.integers(1, 200), st.integers(1, 40))
def test_all_gather_concatenates_the_rows(of: tuple[int, int], size: int, most: int) -> None:
    workers, _ = of
    rows = [drawn(rank, size) for rank in range(workers)]
    found = [np.zeros(workers * size, np.int32) for _ in rows]
    carry([OwnedBytes.gathered(rank, workers, BLOCK, row, found[rank]) for rank, row in enumerate(rows)], most)
    assert all(np.array_equal(each, np.concatenate(rows)) for each in found)


@given(workers_and_slots, st.integers(1, 400), st.integers(1, 40), st.integers(0, 5))
@pytest.mark.slow
def test_broadcast_copies_the_roots_array(of: tuple[int, int], size: int, most: int, root: int) -> None:
    (workers, span), root = of, root % of[0]
    arrays = [drawn(rank, size) for rank in range(workers)]
    found = [np.zeros(size, np.int32) for _ in arrays]
    every = [
        OwnedBytes.broadcast(rank, workers, BLOCK, root, array, found[rank], span) for rank, array in enumerate(arrays)
    ]
    assert every[0].span <= span
    carry(every, most)
    assert all(np.array_equal(each, arrays[root]) for each in found)


def test_all_gather_works_in_place() -> None:
    """The array may also be another worker's row: received bytes must not be sent on."""
    whole = np.zeros((2, 40), np.int32)
    whole[1] = drawn(0, 40)
    others = drawn(1, 40)
    elsewhere = np.zeros(80, np.int32)
    mine = OwnedBytes.gathered(0, 2, BLOCK, whole[1], whole.reshape(-1))
    theirs = OwnedBytes.gathered(1, 2, BLOCK, others, elsewhere)
    carry([mine, theirs], 2)
    assert np.array_equal(whole.reshape(-1), np.concatenate([drawn(0, 40), others]))
    assert np.array_equal(whole.reshape(-1), elsewhere)
