"""Calls are matched by name and number, without workers."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_host.collectives.call import Key
from kofn_host.collectives.matching import Matching, Mismatch

FIRST, SECOND = Key("", 1), Key("", 2)


@given(st.integers(1, 5), st.data())
def test_call_is_agreed_when_the_last_worker_makes_it(workers: int, data: st.DataObject) -> None:
    """Each worker makes all calls in its own order; the workers' turns are random."""
    keys = [Key(name, number) for name in ("", "a", "b") for number in (1, 2)]
    orders = [list(data.draw(st.permutations(keys))) for _ in range(workers)]
    turns = data.draw(st.permutations([rank for rank in range(workers) for _ in keys]))
    matching, made = Matching(workers), dict.fromkeys(keys, 0)
    for rank in turns:
        key = orders[rank].pop()
        made[key] += 1
        assert matching.post(rank, key, "barrier", 0.0) == (made[key] == workers)
    assert not matching.overdue(1e9, 1.0)
    for rank in range(workers):
        matching.leave(rank)


def test_different_calls_are_named_with_their_workers() -> None:
    matching = Matching(3)
    assert not matching.post(2, FIRST, "barrier", 0.0)
    words = "worker 2 calls barrier, worker 0 calls all_gather of int32 (3,), both as #1"
    with pytest.raises(Mismatch, match=re.escape(words)):
        matching.post(0, FIRST, "all_gather of int32 (3,)", 0.0)


def test_late_worker_is_named_with_its_other_call() -> None:
    matching = Matching(4)
    matching.post(0, FIRST, "barrier", 0.0)
    matching.post(3, FIRST, "barrier", 9.0)
    matching.post(2, Key("b", 1), "broadcast", 9.0)
    assert not matching.overdue(10.0, 10.0)
    words = "not made in 10 s by workers 1 and 2: the call barrier (#1) of worker 0; worker 2 calls broadcast ('b' #1)"
    assert matching.overdue(10.1, 10.0) == words


def test_closed_worker_is_missing_only_in_calls_it_has_not_made() -> None:
    matching = Matching(2)
    matching.post(1, FIRST, "barrier", 0.0)
    matching.leave(1)
    assert matching.post(0, FIRST, "barrier", 0.0)
    with pytest.raises(Mismatch, match=r"worker 1 has closed its communicator: it does not make the call barrier"):
        matching.post(0, SECOND, "barrier", 0.0)


def test_worker_that_closes_while_others_wait_is_named() -> None:
    matching = Matching(2)
    matching.post(0, FIRST, "barrier", 0.0)
    with pytest.raises(Mismatch, match="worker 1 has closed its communicator"):
        matching.leave(1)
