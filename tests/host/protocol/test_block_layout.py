"""Blocks keep their elements; their words follow from the lanes."""

import pytest

from kofn_host.errors import ProtocolError
from kofn_host.protocol.block_layout import BlockLayout


def test_words_follow_from_lanes() -> None:
    shape = BlockLayout(blocks=3, words=4, widest=16)
    assert (shape.elements, shape.total, shape.summary) == (512, 3, None)
    assert [shape.words_of(2, code) for code in (1, 2, 3)] == [4, 2, 1]


def test_summary_block_comes_last_and_has_its_own_words() -> None:
    shape = BlockLayout(blocks=3, words=4, widest=8, summary_words=2)
    assert (shape.elements, shape.total, shape.summary) == (1024, 4, 3)
    assert [shape.words_of(block, 2) for block in range(3)] == [4, 4, 4]
    assert shape.words_of(3, 0) == 2


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (0, 0),  # wider than the widest
        (0, 3),  # half a word
        (0, 4),
        (0, -1),
        (1, 1),  # a block that does not exist
        (-1, 1),
    ],
)
def test_unsendable_lanes_are_refused(block: int, code: int) -> None:
    shape = BlockLayout(blocks=1, words=2, widest=16)
    assert not shape.allows(block, code)
    with pytest.raises(ProtocolError, match=f"block {block} cannot be sent in lanes of code {code}"):
        shape.words_of(block, code)


def test_summary_block_has_32_bit_lanes_only() -> None:
    shape = BlockLayout(blocks=1, words=1, widest=16, summary_words=1)
    assert shape.allows(1, 0)
    assert not shape.allows(1, 1)


def test_sums_of_votes_come_in_planes() -> None:
    shape = BlockLayout(blocks=1, words=4, widest=1, planes=3)
    assert (shape.elements, shape.words_of(0, 4), shape.sum_words_of(0, 4), shape.words_most) == (8192, 4, 12, 12)
    assert not BlockLayout(blocks=1, words=5, widest=1).allows(0, 4), "at most four words of votes are counted"
    wide = BlockLayout(blocks=1, words=32, widest=32, planes=7)
    assert [wide.sum_words_of(0, code) for code in (0, 3, 4)] == [32, 4, 7]


@pytest.mark.parametrize(
    "fields",
    [{"blocks": 0}, {"words": 0}, {"summary_words": -1}, {"widest": 12}, {"planes": 0}],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_out_of_range_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ProtocolError, match=r"must be (1 or more|one of)|summary_words 0 or more"):
        BlockLayout(**({"blocks": 1, "words": 1, "widest": 32} | fields))
