"""When requests are retransmitted, by the specification; specification/both.py compares the native core."""

import math

import numpy as np
import pytest

from kofn_common.wire.packet import KofnHeader
from tests.host.protocol.specification.in_flight import InFlight
from tests.host.protocol.specification.timeout import PATIENCE_MIN_S, RTO_MIN_S


def flights(*leaves_s: float) -> InFlight:
    """Return requests for blocks 0, 1, ..., launched at 0, that leave at these times; the first timeout is 50 ms."""
    made = InFlight(0.05)
    for block, at in enumerate(leaves_s):
        made.launch(block, KofnHeader(block=block), b"", 0.0)
        if at:
            made.leaves(made.by_request[block], at)
    return made


def test_silence_counts_from_when_the_first_packet_leaves() -> None:
    assert flights(0.0, 0.5).deadline == pytest.approx(0.05)
    assert flights(0.04, 0.5).deadline == pytest.approx(0.04 + 0.05)


def test_silence_counts_from_the_next_packet_when_all_that_have_left_are_answered() -> None:
    made = flights(0.0, 0.5, 0.6)
    made.answered([0], 0.01)
    assert made.deadline == pytest.approx(0.5 + 0.05)


def test_only_packets_that_have_left_are_repeated_in_silence() -> None:
    made = flights(0.0, 0.5, 0.6)
    for _ in range(2):
        assert made.deadline is not None
        assert made.deadline < 0.5
        assert made.due(made.deadline) == [0]


def test_packet_that_has_not_left_is_not_overtaken() -> None:
    made = flights(0.4, 0.5)
    made.answered([1], 0.01)
    assert made.by_request[0].deadline == pytest.approx(0.4 + PATIENCE_MIN_S), "block 1 is closed elsewhere"


def test_answer_to_a_packet_that_has_not_left_teaches_nothing() -> None:
    made = flights(0.5)
    made.answered([0], 0.01)
    for block in (1, 2):
        made.launch(block, KofnHeader(block=block), b"", float(block))
    made.answered([1], 1.01)
    made.mark_sent_again(2, 2.05)
    made.answered([2], 2.051)
    assert made._patience.window_s == 2 * PATIENCE_MIN_S, "an answer that came too soon shows a needless retransmission"


def test_answers_that_arrive_together_are_one_wait() -> None:
    """Eight answers come every 10 ms, so a pause of 20 ms is silence, and one of a few milliseconds is not."""
    made = flights(*[0.0] * 64)
    for batch in range(6):
        now = 0.05 + batch / 100
        made.answered(range(8 * batch, 8 * batch + 8), now)
    assert made.deadline is not None
    assert made.deadline - now >= 0.02 - 1e-9


def moving(*gaps_s: float, more: int = 4) -> tuple[InFlight, float]:
    """Answer blocks with these pauses, with `more` still open, and return the time of the last answer."""
    made, now = flights(*[0.0] * (1 + len(gaps_s) + more)), 0.001
    made.answered([0], now)
    for block, gap_s in enumerate(gaps_s, 1):
        now += gap_s
        made.answered([block], now)
        for other in made.by_request.values():
            other.deadline = math.inf  # no request was overtaken
    return made, now


def repeat_in_silence(made: InFlight) -> float:
    """Repeat the requests that a silence makes due, and return when."""
    assert made.deadline is not None
    now = made.deadline
    for block in made.due(now):
        made.mark_sent_again(block, now)
    return now


def test_tail_is_probed_before_the_timeout() -> None:
    made, answered = moving(*[0.004, 0.012] * 20, more=40)
    first = repeat_in_silence(made)
    second = repeat_in_silence(made)
    third = repeat_in_silence(made)
    assert 0.012 < first - answered < 0.8 * (second - first)
    assert third - second == pytest.approx(2 * (second - first))


@pytest.mark.parametrize("more", [1, 2, 5])
def test_few_requests_are_repeated_often_however_long_others_took(more: int) -> None:
    """Answers were a second apart, since other workers were awaited; a round trip takes 1.5 ms at most."""
    made, answered = moving(*[1.0] * 10, more=more)
    times = [answered, *(repeat_in_silence(made) for _ in range(6))]
    assert np.diff(times) == pytest.approx([trips * more * 0.003 for trips in (4, 1, 2, 3, 4, 5)])


@pytest.mark.parametrize("lost", [False, True])
def test_wait_for_a_lost_packet_says_nothing_about_other_workers(lost: bool) -> None:
    made, answered = moving(*[0.006] * 20)
    assert made.deadline is not None
    usual = made.deadline - answered
    again = repeat_in_silence(made)
    made.answered([21], again + 0.002, to_again={21} if lost else ())
    assert (made.deadline - (again + 0.002) > 1.05 * usual) != lost


def test_packet_lost_twice_is_not_awaited_like_other_workers() -> None:
    """The first answer took 100 ms, because it needed k workers; a round trip takes 1 ms."""
    made = flights(*[0.0] * 8)
    made.answered([0], 0.1)
    made.launch(8, KofnHeader(block=8), b"", 0.1)
    made.answered([8], 0.101)
    made.mark_sent_again(1, 0.102)
    made.launch(9, KofnHeader(block=9), b"", 0.103)
    made.answered([9], 0.104)
    assert made.by_request[1].deadline == pytest.approx(0.102 + RTO_MIN_S)
