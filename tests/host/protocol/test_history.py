"""A worker keeps whole results, later only their members, then nothing; and never those of a wrong block."""

import pytest

from kofn_common.wire.packet import bit_of
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.results import BlockId, Result
from tests.host.protocol.specification.both import Both


def result(iteration: int, block: int, members: int = 1) -> Result:
    return Result(
        id=BlockId(iteration, block), scale=0, lanes=0, k=1, count=1, weight=3, members=members, values=b"sum"
    )


def kept(blocks: dict[int, tuple[int, ...]], keep: int = 2, workers: int = 0) -> Both:
    """Return a protocol with these blocks' results by iteration, where block b has the members 1 << b; `keep_members`
    is 4.
    """
    layout = BlockLayout(blocks=3, words=1, widest=32)
    protocol = Both(
        job=1, rank=0, layout=layout, slots=8, window=2, rto_s=0.05, keep=keep, keep_members=4, workers=workers
    )
    for iteration, known in blocks.items():
        protocol.jump(iteration, 0.0)
        for block in known:
            protocol.results_in([result(iteration, block, 1 << block)], 0.0)
    return protocol


def results(protocol: Both, first: int, last: int) -> list[Result]:
    """Return the results after checking that core and specification agree."""
    found = list(protocol.native.results(first, last))
    assert found == list(protocol.specification.results(first, last))
    return found


def test_old_results_become_members_and_then_nothing() -> None:
    protocol = kept(dict.fromkeys(range(1, 8), (1, 0)))
    found = [(one.id, one.members, bool(one.values), one.weight) for one in results(protocol, 0, 100)]
    assert found == [
        (BlockId(iteration, block), 1 << block, iteration >= 5, 3 * (iteration >= 5))
        for iteration in range(3, 8)
        for block in (0, 1)
    ]


@pytest.mark.parametrize(
    ("iteration", "members", "forgets"),
    [
        (3, bit_of(0, 0) | bit_of(1, 0), True),
        (3, bit_of(0, 0), False),
        (3, bit_of(0, 0) | bit_of(0, 1) | bit_of(1, 1), False),  # perhaps merged before the replica had the sums
        (4, bit_of(0, 0) | bit_of(1, 0), False),  # this worker still needs the results that it asks for
    ],
)
def test_sums_are_forgotten_once_all_workers_have_given_to_a_later_iteration(iteration, members, forgets) -> None:
    protocol = kept({1: (0,), 2: (0, 2), 3: (0,)}, keep=9, workers=2)
    protocol.results_in([result(iteration, 1, members)], 0.0)
    held = [(one.id, bool(one.values)) for one in results(protocol, 1, 3) if one.id.block != 1]
    early = [BlockId(1, 0), BlockId(2, 0), BlockId(2, 2)]
    assert held == [*((id, not forgets) for id in early), (BlockId(3, 0), True)]
    assert [one.members for one in results(protocol, 2, 2)] == [1, 4], "results must name their members"


def test_parts_are_remembered() -> None:
    """Each of a worker's contributions has a bit, and a forgotten sum keeps all bits."""
    known = {0: bit_of(3, 0) | bit_of(63, 3), 1: bit_of(0, 0), 2: bit_of(5, 1)}
    protocol = kept({}, keep=0)
    protocol.jump(1, 0.0)
    for block, members in known.items():
        protocol.results_in([result(1, block, members)], 0.0)
    protocol.jump(2, 0.0)
    found = results(protocol, 1, 1)
    assert {one.id.block: one.members for one in found} == known
    assert [(one.values, one.count, one.weight) for one in found] == [(b"", 0, 0)] * 3
    assert [found[0].has(63), found[0].has(63, 3), found[0].has(3), found[2].has(5), found[2].has(5, 1)] == [
        False, True, True, False, True
    ]  # fmt: skip


def test_members_are_remembered_with_their_blocks() -> None:
    """An iteration sends some blocks only, and a worker that jumps leaves open blocks to the others."""
    protocol = kept({1: (0, 2), 2: (0, 1), 3: (2,)})
    protocol.jump(5, 0.0)
    found = {one.id: one.members for one in results(protocol, 0, 4) if not one.values}
    assert found == {BlockId(1, 0): 1, BlockId(1, 2): 4, BlockId(2, 0): 1, BlockId(2, 1): 2}
    assert [one.id for one in results(protocol, 3, 4)] == [BlockId(3, 2)]
