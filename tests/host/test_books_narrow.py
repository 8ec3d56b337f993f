"""Books of blocks in lanes of any width, of which some rest: nothing is lost, whatever encoding leaves over."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from host.age import NOTHING_FADES, AgeWeight
from host.coding import Coding
from host.compress import Codec, FixedPoint, OneBit, statistics, to_fixed
from host.encoder import Encoder
from host.errors import GradientError
from host.pages import Pages
from host.residual import Residual
from host.wire import WEIGHT_UNIT
from run.compression import Compress
from run.config import Job
from tests.host.lab import books_of, send, send_again, sent_values, sent_weight
from tests.host.test_books import copied, moments, result, same_books

BLOCKS, ELEMENTS, ME = 4, 4, 0

CODECS: dict[str, Callable[[], Codec]] = {
    "int32": lambda: FixedPoint(workers=3, gradient_range=16.0),
    "int16": lambda: FixedPoint(workers=3, width=16),
    "int8": lambda: FixedPoint(workers=3, width=8, rounding="stochastic"),
    "int4": lambda: FixedPoint(workers=3, width=4),
    "onebit": lambda: OneBit(workers=3),
}

GRADIENTS = arrays(np.float32, BLOCKS * ELEMENTS, elements=st.floats(-100, 100, width=32))


AGES = {"kept": NOTHING_FADES, "halved": AgeWeight(weight=0.5), "dropped": AgeWeight(weight=0.0)}


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=30)
@given(
    gradients=st.lists(GRADIENTS, min_size=1, max_size=6),
    feedback=st.booleans(),
    late=st.sampled_from([*AGES]),
    data=st.data(),
)
def test_conservation_is_exact_for_every_codec(
    name: str, gradients: list[np.ndarray], feedback: bool, late: str, data: Any
) -> None:
    """Some blocks rest, some are refused and encoded again, some come too late, and a process may begin anew."""
    codec, pages, age = CODECS[name](), Pages.in_memory(blocks=BLOCKS, lanes=ELEMENTS), AGES[late]
    residual = books_of(pages, codec, feedback=feedback, age=age)
    counted, weight = np.zeros((BLOCKS, ELEMENTS), np.int64), np.zeros(BLOCKS, int)
    for iteration, gradient in enumerate(gradients, 1):
        residual.begin(iteration)
        residual.add(gradient, iteration)
        weight += WEIGHT_UNIT
        chosen = np.array(sorted(data.draw(st.sets(st.integers(0, BLOCKS - 1), min_size=1))))
        send(residual, iteration, codec, chosen)
        for block in chosen:
            if data.draw(st.booleans()):
                send_again(residual, block, iteration, codec, data.draw(st.integers(0, 40)))
            if data.draw(st.booleans()):
                residual = books_of(pages, codec, feedback=feedback, age=age)
                send(residual, iteration, codec, chosen)
            included = data.draw(st.booleans())
            own = sent_values(residual, codec, block)
            residual.settle(result(iteration, block, 0b1 if included else 0b10))
            counted[block] += own * included
            weight[block] = 0 if included else weight[block] * age.at(1) // WEIGHT_UNIT
            if not feedback and included:
                assert not residual.pending[block].any(), "what is left over of what was counted is thrown away"
            if late == "dropped" and not included:
                assert not residual.pending[block].any(), "what rounding had left there goes as well"
        assert residual.unsettled(iteration) == []
    books = residual.books()
    assert books.conserved
    assert np.array_equal(books.counted, counted.ravel())
    assert np.array_equal(books.gradients, sum(to_fixed(gradient) for gradient in gradients))
    assert residual.waiting.tolist() == weight.tolist()
    if feedback and late == "kept":
        assert not books.discarded.any()


def live(pages: Pages, last: int, *, age: AgeWeight, feedback: bool) -> Residual:
    """Goes on from wherever its books are, in lanes that change: block 0 is counted, 1 comes late, 2 is refused once.

    Each rests in every third iteration; 3 is counted and taken back.
    """
    codecs = {1: FixedPoint(workers=3, width=16), 3: FixedPoint(workers=3, width=4)}
    residual = Residual(pages, ME, codecs, age=age, feedback=feedback)
    for iteration in range(max(residual.begun, 1), last + 1):
        residual.begin(iteration)
        gradient = np.random.default_rng(iteration).normal(size=BLOCKS * 2).astype(np.float32)
        for blocks in np.arange(BLOCKS)[::2], None:
            residual.add(gradient, iteration, blocks)
        lanes = 1 + 2 * (iteration % 2)
        scale = codecs[lanes].scale(*statistics(residual.pending))
        chosen = np.array([block for block in range(BLOCKS) if (iteration + block) % 3])
        residual.sending(iteration, chosen, lanes, np.full(BLOCKS, 2 + iteration) if lanes == 3 else scale)
        if 2 in chosen and pages.sent_scale[0, 2] != 6 and 2 in residual.unsettled(iteration):
            residual.send_again(np.array([2]), iteration, 3, np.full(BLOCKS, 6))
        for block in chosen:
            residual.settle(result(iteration, block, 0b10 if block == 1 else 0b1))
        residual.reconcile(result(iteration, 3, 0b10))
    return residual


@pytest.mark.parametrize("late", AGES)
@pytest.mark.parametrize("feedback", [False, True])
def test_a_kill_before_any_line_loses_nothing(late: str, feedback: bool) -> None:
    """Who goes on has what it would have had."""
    pages, age = Pages.in_memory(blocks=BLOCKS, lanes=2), AGES[late]
    found = moments(pages, lambda: live(pages, 3, age=age, feedback=feedback))
    whole = live(pages, 3, age=age, feedback=feedback)
    assert whole.books().conserved
    assert len(found) > 60
    for moment in found:
        codecs = {1: FixedPoint(workers=3, width=16), 3: FixedPoint(workers=3, width=4)}
        died = Residual(copied(moment), ME, codecs, age=age, feedback=feedback)
        assert died.books().conserved
        if not feedback:
            assert not died.pending[died.waiting == 0].any(), "thrown away, or not yet counted"
        same_books(live(moment, 3, age=age, feedback=feedback), whole)


def test_what_was_sent_is_counted_in_the_lanes_that_it_was_sent_in() -> None:
    codecs = {1: FixedPoint(workers=3, width=16), 3: FixedPoint(workers=3, width=4)}
    pages = Pages.in_memory(blocks=2, lanes=4)
    residual = Residual(pages, ME, codecs)
    residual.add(np.full(8, 1.3, np.float32), 1)
    residual.sending(1, np.array([0, 1]), 1, np.array([1, 1]))
    residual.send_again(np.array([1]), 1, 3, np.array([0, 0]))
    again = Residual(pages, ME, codecs)
    for block in range(2):
        again.settle(result(1, block, 0b1))
    assert again.books().counted.reshape(2, 4)[:, 0].tolist() == [3 << 39, 1 << 40]
    assert again.books().conserved


def test_a_block_that_rests_stays_pending_with_all_its_gradients() -> None:
    codec = CODECS["int8"]()
    residual = books_of(Pages.in_memory(blocks=2, lanes=4), codec, feedback=False)
    for iteration in (1, 2, 3):
        residual.add(np.ones(8, np.float32), iteration)
        send(residual, iteration, codec, np.array([0]))
        residual.settle(result(iteration, 0, 0b1))
    assert residual.waiting.tolist() == [0, 3 * WEIGHT_UNIT]
    assert residual.pending.tolist() == [[0] * 4, [3 << 40] * 4]
    send(residual, 4, codec)
    assert sent_weight(residual, 1) == 3 * WEIGHT_UNIT
    residual.settle(result(4, 1, 0b1))
    assert residual.waiting.tolist() == [0, 0]


def test_a_summary_block_is_not_in_the_books() -> None:
    codec = CODECS["int8"]()
    residual = books_of(Pages.in_memory(blocks=2, lanes=4), codec)
    residual.add(np.ones(8, np.float32), 1)
    send(residual, 1, codec)
    before = residual.books()
    for block in (2, 3):
        residual.settle(result(1, block, 0b1))
        residual.reconcile(result(1, block, 0b10))
    assert np.array_equal(residual.books().counted, before.counted)
    assert residual.unsettled(1) == [0, 1]


@pytest.mark.parametrize("name", [*CODECS, "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**21])
def test_bad_gradients_reach_neither_books_nor_wire(name: str, bad: float) -> None:
    coding = Coding.of(Job(workers=3, words=8), Compress(codec=name), 1000)
    residual = Residual(Pages.in_memory(blocks=coding.shape.blocks, lanes=coding.shape.elements), ME, coding.codecs)
    encoder, gradient = Encoder(coding, residual), np.ones(1000, np.float32)
    gradient[3] = bad
    encoder.begin(1)
    with pytest.raises(GradientError, match="gradient element 3 is"):
        encoder.enter(gradient, 1)
    assert (residual.entered, residual.pending.any(), residual.books().gradients.any()) == (0, False, False)
    with pytest.raises(KeyError):
        encoder.packed(0)
