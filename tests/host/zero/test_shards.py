"""Every element of the parameters has one owner."""

import numpy as np
import pytest

from kofn_host.zero.shards import Shards

SIZES = [[1], [7], [8], [5, 3, 1], [2, 16, 9]]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_element_is_in_one_shard(sizes: list[int], workers: int) -> None:
    shards, flat = Shards(sizes, workers), np.arange(1, sum(sizes) + 1, dtype=np.float32)
    found = np.concatenate([shards.cut(flat, rank) for rank in range(workers)])
    assert sorted(found[found > 0].tolist()) == flat.tolist()
    assert {each.size for each in (shards.cut(flat, rank) for rank in range(workers))} == {shards.shard_elements}
    for unit in shards.units:
        rows = [shards.cut(flat, rank)[unit.in_shard] for rank in range(workers)]
        assert np.array_equal(np.concatenate(rows)[: unit.size], flat[unit.begin : unit.end])
        assert np.array_equal(np.stack(rows), unit.padded(flat[unit.begin : unit.end], workers))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_segments_are_the_pieces_between_edges(sizes: list[int], workers: int) -> None:
    elements = sum(sizes)
    edges = [*range(0, elements, 4), elements]
    shards, flat = Shards(sizes, workers), np.arange(elements, dtype=np.float32)
    for rank in range(workers):
        shard, seen = shards.cut(flat, rank), list[float]()
        for number, place in shards.segments(rank, edges):
            values = shard[place].tolist()
            assert all(edges[number] <= value < edges[number + 1] for value in values)
            seen += values
        assert sorted(seen) == sorted(value for there, _ in shards.parts(rank) for value in flat[there].tolist())
