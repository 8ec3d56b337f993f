"""The greedy split, compared with all possible splits."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_jobs.errors import SplitError
from kofn_jobs.split import Capacity, split


def nodes(*sizes: int) -> list[Capacity]:
    return [Capacity(f"n{place}", size) for place, size in enumerate(sizes)]


def counts(total: int, *sizes: int, least: int = 3) -> list[str]:
    return [str(part) for part in split(total, nodes(*sizes), least)]


@pytest.mark.parametrize(
    ("total", "sizes", "parts"),
    [
        (15, (10, 10), ["n0: 10", "n1: 5"]),
        (11, (10, 10), ["n0: 8", "n1: 3"]),
        (4, (3, 10), ["n1: 4"]),
        (10, (10, 10), ["n0: 10"]),
        (5, (2, 10), ["n1: 5"]),
        (22, (10, 10, 10), ["n0: 10", "n1: 9", "n2: 3"]),
        (7, (3, 4, 10), ["n0: 3", "n1: 4"]),
        (10, (4, 3, 10), ["n0: 4", "n1: 3", "n2: 3"]),
        (8, (4, 3, 10), ["n2: 8"]),
    ],
)
def test_accelerators_are_split_greedily(total: int, sizes: tuple[int, ...], parts: list[str]) -> None:
    assert counts(total, *sizes) == parts


def test_least_is_a_parameter() -> None:
    assert counts(11, 10, 10, least=1) == ["n0: 10", "n1: 1"]


@pytest.mark.parametrize(
    ("total", "sizes", "words"),
    [
        (25, (10, 10), "25 accelerators: 10 + 10 = 20 are there"),
        (2, (10,), "2 accelerators: a node's part is at least 3"),
        (5, (4, 2, 2), "5 accelerators: 4 + 2 + 2 = 8 are there, 4 of them on nodes that can run 3 or more"),
        (
            5,
            (3, 4),
            "5 accelerators: 3 + 4 = 7 are there, and each node's part is at least 3: 3 to 4 or 6 to 7 are possible",
        ),
        (5, (), "5 accelerators: no node, 0 = 0 are there"),
    ],
)
def test_impossible_split_is_refused_with_the_arithmetic(total: int, sizes: tuple[int, ...], words: str) -> None:
    with pytest.raises(SplitError) as refused:
        split(total, nodes(*sizes))
    assert str(refused.value) == words


def possible(total: int, sizes: list[int], least: int) -> bool:
    choices = [(0, *range(least, size + 1)) for size in sizes]
    return any(sum(chosen) == total for chosen in product(*choices))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 24), st.lists(st.integers(0, 8), max_size=4), st.integers(1, 4))
def test_split_is_found_wherever_one_exists(total: int, sizes: list[int], least: int) -> None:
    capacity = {node.node: node.accelerators for node in nodes(*sizes)}
    if not possible(total, sizes, least):
        with pytest.raises(SplitError):
            split(total, nodes(*sizes), least)
        return
    parts = split(total, nodes(*sizes), least)
    assert sum(part.accelerators for part in parts) == total
    assert all(least <= part.accelerators <= capacity[part.node] for part in parts)
