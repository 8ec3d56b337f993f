"""Ledger of blocks in lanes of any width, some of which rest: no value is lost, whatever the encoding error."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kofn_common.config.compress import CompressSection, Residual
from kofn_common.config.job import JobSection
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_host.compression.age_weight import NOTHING_FADES, AgeWeight
from kofn_host.compression.codec import Codec, statistics
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.codecs.onebit import OneBit
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient, checksums
from kofn_host.compression.ledger_storage import KEPT, LedgerStorage
from kofn_host.errors import CodecError, GradientError, ProtocolError
from tests.host.compression.stores import left_by_kills, moments
from tests.host.compression.test_ledger import result, same_ledger
from tests.host.lab import add, checksums_of, ledger_of, send, send_again, sent_values, sent_weight, to_fixed

BLOCKS, ELEMENTS, ME = 4, 8, 0


class Own(FixedPoint):
    """A user's codec, which ledger.c cannot decode."""


class OwnBit(OneBit):
    """A user's votes, which ledger.c cannot decode."""


CODECS: dict[str, Callable[[], Codec]] = {
    "int32": lambda: FixedPoint(workers=3, gradient_range=16.0),
    "int16": lambda: FixedPoint(workers=3, width=16),
    "int8": lambda: FixedPoint(workers=3, width=8, rounding="stochastic"),
    "int4": lambda: FixedPoint(workers=3, width=4),
    "onebit": OneBit,
    "own": lambda: Own(workers=3, width=16, rounding="stochastic"),
}

GRADIENTS = arrays(np.float32, BLOCKS * ELEMENTS, elements=st.floats(-100, 100, width=32))


AGES = {"kept": NOTHING_FADES, "halved": AgeWeight(weight=0.5), "dropped": AgeWeight(weight=0.0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=30)
@given(
    gradients=st.lists(GRADIENTS, min_size=1, max_size=6),
    feedback=st.booleans(),
    late=st.sampled_from([*AGES]),
    residual=st.sampled_from([*KEPT]),
    data=st.data(),
)
def test_conservation_is_exact_for_every_codec(
    name: str, gradients: list[np.ndarray], feedback: bool, late: str, residual: Residual, data: Any
) -> None:
    """Some blocks rest, some are refused and encoded at another scale, some are late, and the process may restart."""
    codec, age = CODECS[name](), AGES[late]
    storage = LedgerStorage.in_memory(blocks=BLOCKS, lanes=ELEMENTS, residual=residual)
    ledger = ledger_of(storage, codec, feedback=feedback, age=age)
    aggregated, weight = np.zeros((BLOCKS, ELEMENTS), np.int64), np.zeros(BLOCKS, int)
    for iteration, gradient in enumerate(gradients, 1):
        ledger.begin(iteration)
        add(ledger, gradient, iteration)
        weight += WEIGHT_UNIT
        chosen = np.array(sorted(data.draw(st.sets(st.integers(0, BLOCKS - 1), min_size=1))))
        send(ledger, iteration, codec, chosen)
        for block in chosen:
            if data.draw(st.booleans()):
                send_again(ledger, block, iteration, codec, data.draw(st.integers(0, 40)))
            if data.draw(st.booleans()):
                ledger = ledger_of(storage, codec, feedback=feedback, age=age)
                send(ledger, iteration, codec, chosen)
            included = data.draw(st.booleans())
            own = sent_values(ledger, codec, block)
            ledger.settle_results(result(iteration, block, 0b1 if included else 0b10))
            aggregated[block] += own * included
            weight[block] = 0 if included else weight[block] * age.at(1) // WEIGHT_UNIT
            if not feedback and included:
                assert not ledger.residual.pending[block].any(), "the remainder of aggregated values is discarded"
            if late == "dropped" and not included:
                assert not ledger.residual.pending[block].any(), "the earlier rounding error is discarded as well"
        assert ledger.sent.unsettled(iteration) == []
    totals = ledger.accounts.totals()
    assert totals.conserved
    assert np.array_equal(totals.aggregated, checksums(aggregated))
    entered = np.sum([to_fixed(gradient) for gradient in gradients], axis=0)
    assert np.array_equal(totals.gradients, checksums_of(ledger, entered))
    if not totals.discarded.any():
        assert np.array_equal(ledger.residual.pending.ravel(), entered - aggregated.ravel())
    assert ledger.accounts.waiting.tolist() == weight.tolist()
    if feedback and late == "kept" and residual == "exact":
        assert not totals.discarded.any()


NARROW: dict[int, Codec] = {1: FixedPoint(workers=3, width=16), 3: FixedPoint(workers=3, width=4)}
OWN: dict[int, Codec] = {1: Own(workers=3, width=16), 3: Own(workers=3, width=4)}


def live(
    storage: LedgerStorage, last: int, *, age: AgeWeight, feedback: bool, codecs: Mapping[int, Codec] = NARROW
) -> Ledger:
    """Continue from any state of the ledger, in changing lanes: block 0 is aggregated, 1 is late, 2 is refused once.

    Block 3 is aggregated and taken back. Each block rests in every third iteration.
    """
    ledger = Ledger(storage, ME, codecs, age=age, feedback=feedback)
    for iteration in range(max(ledger.begun, 1), last + 1):
        ledger.begin(iteration)
        gradient = np.random.default_rng(iteration).normal(size=BLOCKS * 2).astype(np.float32)
        for blocks in np.arange(BLOCKS)[::2], None:
            add(ledger, gradient, iteration, blocks)
        lanes = 1 + 2 * (iteration % 2)
        scale = codecs[lanes].scale(*statistics(ledger.residual.pending))
        chosen = np.array([block for block in range(BLOCKS) if (iteration + block) % 3])
        ledger.sending(iteration, chosen, lanes, np.full(BLOCKS, 2 + iteration) if lanes == 3 else scale)
        if 2 in chosen and storage.sent[0, iteration % 2, 2]["scale"] != 6 and 2 in ledger.sent.unsettled(iteration):
            ledger.send_again(np.array([2]), iteration, 3, np.full(BLOCKS, 6))
        for block in chosen:
            ledger.settle_results(result(iteration, block, 0b10 if block == 1 else 0b1))
        ledger.reconcile(result(iteration, 3, 0b10))
    return ledger


@pytest.mark.slow
@pytest.mark.parametrize("late", AGES)
@pytest.mark.parametrize(
    ("codecs", "residual", "feedback"),
    [
        pytest.param(codecs, residual, feedback, id=f"{name}-{feedback}", marks=() if in_short else pytest.mark.long)
        for name, codecs, residual in (
            ("narrow", NARROW, "exact"),
            ("own", OWN, "exact"),
            ("bfloat16", NARROW, "bfloat16"),
            ("int8", NARROW, "int8"),
        )
        for feedback, in_short in ((False, name == "narrow"), (True, True))
    ],
)
def test_kill_at_any_store_loses_nothing(
    late: str, codecs: Mapping[int, Codec], residual: Residual, feedback: bool
) -> None:
    """A worker that continues has the ledger of an undisturbed one."""
    storage = LedgerStorage.in_memory(blocks=BLOCKS, lanes=2, residual=residual, in_place=False)
    age = AGES[late]
    found = left_by_kills(
        moments(storage, lambda: live(storage, 3, age=age, feedback=feedback, codecs=codecs)),
        lambda died: Ledger(died, ME, codecs, age=age, feedback=feedback),
    )
    whole = live(storage, 3, age=age, feedback=feedback, codecs=codecs)
    assert whole.accounts.totals().conserved
    assert len(found) > 60
    for died in found:
        ledger = Ledger(died, ME, codecs, age=age, feedback=feedback)
        assert ledger.accounts.totals().conserved
        if not feedback:
            assert not ledger.residual.pending[ledger.accounts.waiting == 0].any(), (
                "pending values must be 0 where no gradient is pending"
            )
        same_ledger(live(died, 3, age=age, feedback=feedback, codecs=codecs), whole)


@pytest.mark.parametrize("late", AGES)
@pytest.mark.parametrize("residual", get_args(Residual))
def test_ledger_that_changes_in_place_equals_one_with_a_journal(late: str, residual: Residual) -> None:
    sizes, age = {"blocks": BLOCKS, "lanes": 2}, AGES[late]
    storages = [LedgerStorage.in_memory(**sizes, residual=residual, in_place=in_place) for in_place in (True, False)]
    one, other = (live(storage, 5, age=age, feedback=False, codecs=NARROW) for storage in storages)
    same_ledger(one, other)
    assert one.residual.lost_norm == other.residual.lost_norm
    assert np.array_equal(storages[0].records, storages[1].records)


def test_only_a_ledger_in_memory_changes_in_place(tmp_path: Path) -> None:
    assert LedgerStorage.in_memory(blocks=BLOCKS, lanes=8).in_place
    assert not LedgerStorage.in_file(tmp_path / "ledger", job=1, rank=0, blocks=BLOCKS, lanes=8).in_place


def left(ledger: Ledger, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the residual of all blocks less the values of their parts, in lanes of these codes."""
    rest: np.ndarray = ledger.residual.pending.copy()
    for sent, code in zip(ledger.sent.whole(1), codes.tolist(), strict=False):
        rest -= ledger._codecs[code].decode(sent, scales[:, None], 1)
    return rest


@pytest.mark.parametrize(
    ("native", "own"),
    [
        (NARROW, OWN),
        ({0: FixedPoint(workers=3)}, {0: Own(workers=3)}),
        ({2: FixedPoint(workers=3, width=8)}, {2: Own(workers=3, width=8)}),
        ({4: OneBit()}, {4: OwnBit()}),
    ],
    ids=["narrow", "int32", "int8", "onebit"],
)
@given(seed=st.integers(0, 2**32 - 1), lanes=st.sampled_from([8, 64, 1024, 1032, 2056]))
@settings(max_examples=10, deadline=None)
def test_native_code_encodes_and_decodes_as_the_codecs_do(
    native: Mapping[int, Codec], own: Mapping[int, Codec], seed: int, lanes: int
) -> None:
    """A block's parts have any lanes. Some are in sums and are taken back; gradients enter meanwhile."""
    random, scales = np.random.default_rng(seed), np.array([0, 17, 38])
    parts = random.integers(0, 8, 3)
    codes, given = random.choice([*native], 3), random.normal(0, 2, (3, 3 * lanes)).astype(np.float32)
    ledgers = [Ledger(LedgerStorage.in_memory(blocks=3, lanes=lanes), ME, codecs) for codecs in (native, own)]
    for ledger in ledgers:
        ledger.begin(1)
        for part, (code, gradient) in enumerate(zip(codes.tolist(), given, strict=True)):
            entering = Gradient.of(gradient, 1, batch=part)
            fresh = [ledger.sending(1, np.arange(3), code, scales, part, entering) for _ in range(2)]
            assert [blocks.tolist() for blocks in fresh] == [[0, 1, 2], []]
        assert np.array_equal(ledger.left_over(np.arange(3), 1), left(ledger, codes, scales))
        ledger.settle(1, np.array([2, 0, 7, 1]), np.array([*parts, 0])[[2, 0, 3, 1]])
        ledger.reconcile(result(1, 0, 0b10))
        assert ledger.accounts.totals().conserved
    same_ledger(*ledgers)


class TooLong(Own):
    """A codec whose lanes have another width than its code says."""

    def __init__(self) -> None:
        super().__init__(workers=3, width=8)
        self.width = 32


def test_codec_that_encodes_more_than_fits_is_refused() -> None:
    storage = LedgerStorage.in_memory(blocks=2, lanes=4, width=8)
    ledger = Ledger(storage, ME, {2: TooLong()})
    with pytest.raises(CodecError, match=r"2 blocks in lanes of 8 bits must be 8 bytes, got 32; a row .* has 4"):
        ledger.sending(1, np.arange(2), 2, np.zeros(2, int))
    with pytest.raises(CodecError, match=r"2 blocks in lanes of 32 bits must be 32 bytes, got 32; a row .* has 4"):
        Ledger(storage, ME, {0: FixedPoint(workers=3)}).sending(1, np.arange(2), 0, np.zeros(2, int))
    assert not storage.packed.any()
    assert not storage.sent["iteration"].any()


def test_parts_are_counted_in_the_lanes_they_were_sent_in() -> None:
    codecs = {1: FixedPoint(workers=3, width=16), 3: FixedPoint(workers=3, width=4)}
    storage = LedgerStorage.in_memory(blocks=2, lanes=4)
    ledger = Ledger(storage, ME, codecs)
    add(ledger, np.full(8, 1.3, np.float32), 1)
    ledger.sending(1, np.array([0, 1]), 1, np.array([1, 1]))
    ledger.send_again(np.array([1]), 1, 3, np.array([0, 0]))
    again = Ledger(storage, ME, codecs)
    for block in range(2):
        again.settle_results(result(1, block, 0b1))
    entered = to_fixed(np.full(1, 1.3, np.float32))
    assert (entered - again.residual.pending[:, 0]).tolist() == [3 << 39, 1 << 40]
    assert again.accounts.totals().conserved


def test_resting_block_keeps_all_its_gradients_pending() -> None:
    codec = CODECS["int8"]()
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=4), codec, feedback=False)
    for iteration in (1, 2, 3):
        add(ledger, np.ones(8, np.float32), iteration)
        send(ledger, iteration, codec, np.array([0]))
        ledger.settle_results(result(iteration, 0, 0b1))
    assert ledger.accounts.waiting.tolist() == [0, 3 * WEIGHT_UNIT]
    assert ledger.residual.pending.tolist() == [[0] * 4, [3 << 40] * 4]
    send(ledger, 4, codec)
    assert sent_weight(ledger, 1) == 3 * WEIGHT_UNIT
    ledger.settle_results(result(4, 1, 0b1))
    assert ledger.accounts.waiting.tolist() == [0, 0]


def test_summary_block_is_not_in_the_ledger() -> None:
    codec = CODECS["int8"]()
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=4), codec)
    add(ledger, np.ones(8, np.float32), 1)
    send(ledger, 1, codec)
    before = ledger.accounts.totals()
    for block in (2, 3):
        ledger.settle_results(result(1, block, 0b1))
        ledger.reconcile(result(1, block, 0b10))
    assert np.array_equal(ledger.accounts.totals().aggregated, before.aggregated)
    assert ledger.sent.unsettled(1) == [0, 1]


@pytest.mark.parametrize("name", ["int32", "int16", "int8", "int4", "onebit", "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**21])
def test_bad_gradients_reach_neither_ledger_nor_wire(name: str, bad: float) -> None:
    coding = JobCoding.of(JobSection(workers=3, words=4), CompressSection(codec=name), 1000)
    ledger = Ledger(
        LedgerStorage.in_memory(blocks=coding.layout.blocks, lanes=coding.layout.elements), ME, coding.codecs
    )
    encoder, gradient = Encoder(coding, ledger), np.ones(1000, np.float32)
    gradient[3] = bad
    encoder.begin(1)
    with pytest.raises(GradientError, match="gradient element 3 must be finite"):
        encoder.enter(gradient, 1)
    assert (ledger.entered, ledger.residual.pending.any(), ledger.accounts.totals().gradients.any()) == (
        0,
        False,
        False,
    )
    with pytest.raises(ProtocolError, match="block 0 was never sent as part 0"):
        encoder.packed(0)
