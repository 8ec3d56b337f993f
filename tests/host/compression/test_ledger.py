"""Fixed point, residuals, ledger, shards and stragglers: everything that a worker computes before it sends."""

import contextlib
import ctypes
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.ledger import measure
from kofn_common.config.job import JobSection
from kofn_common.config.policy import PolicySection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.config.shards import ShardSection as ClassShard
from kofn_common.config.stragglers import StragglerSection
from kofn_common.wire.packet import bit_of
from kofn_common.wire.sizes import PARTS, WEIGHT_MAX, WEIGHT_UNIT
from kofn_host import structs
from kofn_host.compression.age_weight import NOTHING_FADES, AgeWeight
from kofn_host.compression.codec import FRACTION_BITS
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import checksums, factors_of, library
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.errors import GradientError, LedgerError, ProtocolError
from kofn_host.protocol.results import BlockId, Result
from kofn_host.workload.model import Perceptron, load_shard, load_shards
from kofn_host.workload.optimizer import Momentum
from kofn_host.workload.stragglers.drawn import Drawn
from tests.host.compression.stores import MUTANTS, copied, left_by_kills, moments
from tests.host.lab import add, ledger_of, noted, send, send_again, sent_values, sent_weight, to_fixed

CODEC = FixedPoint(workers=4, gradient_range=16.0)

LANES = 2
"""Lanes of a block."""

DROPPED = AgeWeight(weight=0.0)
HALVED = AgeWeight(weight=0.5)

OTHERS = bit_of(1, 0)


def result(iteration: int, block: int, members: int) -> Result:
    count = members.bit_count()
    weight = count * WEIGHT_UNIT
    return Result(
        id=BlockId(iteration, block), scale=0, lanes=0, k=1, count=count, weight=weight, members=members, values=b""
    )


def closed(iteration: int, block: int, *parts: int) -> Result:
    """Return a result with these parts of worker 0, and with another worker."""
    return result(iteration, block, OTHERS | sum(bit_of(0, part) for part in parts))


def test_ledger_keeps_the_factors_of_its_checksums() -> None:
    """Threads that create the first ledgers together get factors of their own; the cache keeps the last ones."""
    factors_of.cache_clear()
    storage = LedgerStorage.in_memory(blocks=1, lanes=LANES)
    ledger = Ledger(storage, 0, {0: CODEC})
    factors = weakref.ref(factors_of(LANES))
    factors_of.cache_clear()
    assert factors() is not None
    del ledger
    assert factors() is None


# -- the weight of old gradients


@given(
    arrays(np.int64, 8, elements=st.integers(-(2**62), 2**62 - 1)) | arrays(np.int64, 8, elements=st.integers(-9, 9)),
    st.integers(0, WEIGHT_UNIT),
)
def test_share_is_rounded_down_whatever_the_size(values: np.ndarray, share: int) -> None:
    """The share of the pending values remains when a block closes without them; the rest is discarded."""
    storage = LedgerStorage.in_memory(blocks=1, lanes=8)
    ledger = ledger_of(storage, CODEC, age=AgeWeight(weight=share / WEIGHT_UNIT))
    add(ledger, np.zeros(8, np.float32), 1)
    storage.pending[0], storage.records["gradients"] = values, checksums(values[None])
    ledger.settle_results(closed(1, 0))
    assert ledger.residual.pending[0].tolist() == [value * share // WEIGHT_UNIT for value in values.tolist()]
    assert ledger.accounts.totals().conserved


def test_weight_is_a_power_of_the_age_up_to_a_limit() -> None:
    age = AgeWeight(weight=0.7, limit=3)
    assert [age.at(old) for old in range(6)] == [256, 179, 125, 88, 0, 0]
    far = AgeWeight(weight=0.5, limit=20)
    assert [far.at(old) for old in (3, 4, 5, 20, 21)] == [32, 16, 16, 16, 0], (
        "the weight is never below a sixteenth, up to the age limit"
    )
    assert [AgeWeight(weight=0.0).at(old) for old in (0, 1, 5)] == [256, 0, 0]
    assert age.per_iteration == 179, "pending gradients lose weight in each iteration"
    assert [NOTHING_FADES.at(old) for old in (0, 1, 10_000)] == [256] * 3
    assert [DROPPED.at(old) for old in (0, 1, 2)] == [256, 0, 0]


def test_configuration_determines_the_weight_of_old_gradients() -> None:
    assert AgeWeight(limit=16).under(PolicySection().late_policy) == AgeWeight(weight=0.5, limit=16)
    for rule in ("async", "batch-sync", "stash", "abort"):
        late_policy = PolicySection(late_gradient=rule, age_weight=0.9).late_policy
        assert AgeWeight(limit=3).under(late_policy) == AgeWeight(weight=0.9, limit=3)
    fading = AgeWeight(limit=3).under(PolicySection(late_gradient="drop", age_weight=0.9).late_policy)
    assert (fading.at(1), fading.limit) == (0, 3), "nothing is left at the limit"


# -- the ledger against a separate account


def numbers(values: Iterable[int]) -> np.ndarray:
    """Return integers of unlimited size."""
    return np.array([int(value) for value in values], object)


LEFT = {1.0: [256, 256], 0.5: [256, 128, 64, 32, 16], 0.1: [256, 26, 16], 0.0: [256, 0]}
"""Weight that remains of a gradient after each iteration, by age weight; the last entry applies to all further ones."""


@dataclass
class Expected:
    """The expected state of a block's ledger; unaggregated gradients lose weight with each closing."""

    age: AgeWeight
    gradients: np.ndarray = field(default_factory=lambda: numbers([0] * LANES))
    aggregated: np.ndarray = field(default_factory=lambda: numbers([0] * LANES))
    discarded: np.ndarray = field(default_factory=lambda: numbers([0] * LANES))
    entered_weight: int = 0
    aggregated_weight: int = 0
    discarded_weight: int = 0
    settled: int = 0
    """The latest iteration whose sum has closed."""
    waits: list[int] = field(default_factory=list)
    """The first missed iteration of each gradient that waits and is in no part in flight; 0: none."""
    away: dict[int, tuple[np.ndarray, int, list[int]]] = field(default_factory=dict)
    """By part: the values and weight that it carries, and the first missed iteration of each of its gradients."""

    @property
    def weight(self) -> int:
        return self.entered_weight - self.aggregated_weight - self.discarded_weight

    @property
    def unsent(self) -> int:
        return self.weight - sum(weight for _, weight, _ in self.away.values())

    @property
    def pending(self) -> np.ndarray:
        return self.gradients - self.aggregated - self.discarded

    @property
    def late_since(self) -> int:
        late = [*self.waits, *(each for _, _, inside in self.away.values() for each in inside)]
        return min(filter(None, late), default=0)

    def missed(self, sums: int) -> bool:
        late = min(filter(None, self.waits), default=0)
        return self.unsent > 0 and (not sums or late > 0) and (sums < 2 or late < self.settled)

    def _share(self, iterations: int, age: int) -> int:
        """Return the share that remains of a gradient of this final age after the iterations."""
        left = LEFT[self.age.weight]
        return left[min(iterations, len(left) - 1)] if age <= self.age.limit else 0

    def enter(self, values: np.ndarray, begun: int, now: int) -> None:
        late = self.settled >= begun
        age = now + (self.settled >= now) - begun if late else 0
        share = self._share(age, age)
        self.gradients = self.gradients + values
        self.discarded = self.discarded + (values - values * share // WEIGHT_UNIT)
        self.entered_weight += WEIGHT_UNIT
        self.discarded_weight += WEIGHT_UNIT - share
        self.waits += [begun * late] if share else []

    def send(self, part: int, values: np.ndarray) -> None:
        self.away[part] = values, self.unsent, self.waits
        self.waits = []

    def close(self, iteration: int, parts: Iterable[int]) -> None:
        for part, (values, weight, late) in self.away.items():
            if part in parts:
                self.aggregated = self.aggregated + values
                self.aggregated_weight += weight
            else:
                self.waits = self.waits + late
        self.away, self.settled = {}, iteration
        self.waits = [late or iteration for late in self.waits]
        if not self.weight:
            return
        share = self._share(1, iteration + 1 - self.late_since)
        left = self.weight * share // WEIGHT_UNIT
        kept = self.pending * share // WEIGHT_UNIT if left else self.pending * 0
        self.discarded = self.discarded + self.pending - kept
        self.discarded_weight += self.weight - left
        if not left:
            self.waits = []


BLOCKS = 3
STEP = 1 << FRACTION_BITS - CODEC.exponent

SEVERAL = st.sets(st.integers(0, BLOCKS - 1), min_size=1).map(sorted)

STEPS = st.lists(st.sampled_from(["enter", "late", "send", "refuse", "close", "die"]), min_size=1, max_size=9)


class Twin:
    """A ledger and its expected state, through a worker's steps in successive iterations."""

    def __init__(self, age: AgeWeight) -> None:
        self.age, self.storage = age, LedgerStorage.in_memory(blocks=BLOCKS, lanes=LANES)
        self.ledger = ledger_of(self.storage, CODEC, age=age)
        self.expected = [Expected(age) for _ in range(BLOCKS)]
        self.iteration, self.newest = 0, (0, 0)
        self.open: set[int] = set()
        self.parts: list[int] = []

    def begin(self) -> None:
        self.iteration += 1
        self.ledger.begin(self.iteration)
        self.open, self.parts = set(range(BLOCKS)), list(range(PARTS))

    def enter(self, begun: int, values: np.ndarray, first: list[int]) -> None:
        """Enter a gradient that was begun in iteration `begun`, these blocks first."""
        batch = self.newest[1] + 1 if begun == self.newest[0] else 0
        if begun < self.newest[0] or batch == PARTS:
            return
        self.newest = begun, batch
        for blocks in np.array(first), None, None:
            add(self.ledger, values, begun, blocks, batch=batch, current=self.iteration)
        for block, expected in enumerate(self.expected):
            whole = numbers(to_fixed(values).reshape(BLOCKS, LANES)[block])
            expected.enter(whole, begun, self.iteration)

    def send(self, part: int, chosen: Iterable[int]) -> None:
        blocks = [block for block in chosen if block in self.open]
        send(self.ledger, self.iteration, CODEC, np.array(blocks, int), part)
        for block in blocks:
            self._sent(part, block)

    def refuse(self, block: int, scale: int) -> None:
        """Encode the block's latest part at another scale, which the slot asks for."""
        if self.expected[block].away:
            part = [*self.expected[block].away][-1]
            send_again(self.ledger, block, self.iteration, CODEC, scale, part)
            _, _, late = self.expected[block].away.pop(part)
            self.expected[block].waits = self.expected[block].waits + late
            self._sent(part, block)

    def _sent(self, part: int, block: int) -> None:
        expected, values = self.expected[block], numbers(sent_values(self.ledger, CODEC, block, part))
        step = 1 << 40 - noted(self.ledger, block, part).scale
        rest = expected.pending - values - sum(other for other, _, _ in expected.away.values())
        assert np.abs(rest).max() <= step // 2, "values in flight must not be sent again, all others must"
        expected.send(part, values)
        assert sent_weight(self.ledger, block, part) == max(1, expected.away[part][1])

    def close(self, block: int, parts: set[int]) -> None:
        if block in self.open:
            self.open.remove(block)
            inside = parts & self.expected[block].away.keys()
            self.ledger.settle_results(closed(self.iteration, block, *inside))
            self.expected[block].close(self.iteration, inside)

    def die(self) -> None:
        self.ledger = ledger_of(self.storage, CODEC, age=self.age)

    def check(self) -> None:
        ledger, expected = self.ledger, self.expected
        totals, account = ledger.accounts.totals(), ledger.accounts.account()
        assert totals.conserved
        assert ledger.residual.pending.tolist() == [one.pending.tolist() for one in expected]
        for name in ("gradients", "aggregated", "discarded", "pending"):
            values = np.array([getattr(one, name).tolist() for one in expected])
            assert np.array_equal(getattr(totals, name), checksums(values)), name
        assert ledger.accounts.waiting.tolist() == [one.weight for one in expected]
        assert ledger.accounts.unsent(self.iteration).tolist() == [one.unsent for one in expected]
        shares = [sum(weights) / BLOCKS / WEIGHT_UNIT for weights in zip(*(
            (one.entered_weight, one.aggregated_weight, one.weight, one.discarded_weight) for one in expected
        ), strict=True)]  # fmt: skip
        assert [account.entered, account.summed, account.waiting, account.discarded] == pytest.approx(shares, abs=1e-12)
        late = [one.late_since for one in expected if one.weight and one.late_since]
        assert account.late_since == min(late, default=0)
        for sums in (0, 1, 2):
            assert ledger.accounts.missed(sums).tolist() == [one.missed(sums) for one in expected]


@pytest.mark.slow
@pytest.mark.parametrize("weight", LEFT)
@settings(max_examples=60, deadline=None)
@given(limit=st.sampled_from([1, 2, 3, 1 << 32]), seed=st.integers(0, 1 << 32), data=st.data())
def test_ledger_accounts_for_entered_counted_and_faded_gradients(
    weight: float, limit: int, seed: int, data: Any
) -> None:
    """Gradients come in time or late, in up to four parts of a block. Sums contain any of them; blocks may rest."""
    twin, random = Twin(AgeWeight(weight=weight, limit=limit)), np.random.default_rng(seed)
    for _ in range(data.draw(st.integers(1, 6))):
        twin.begin()
        for step in data.draw(STEPS):
            if step in ("enter", "late"):
                begun = data.draw(st.integers(max(1, twin.newest[0]), twin.iteration)) if step == "late" else 0
                values = random.uniform(-0.25, 0.25, BLOCKS * LANES).astype(np.float32)
                twin.enter(begun or twin.iteration, values, data.draw(SEVERAL))
            elif step == "send" and twin.parts:
                part = twin.parts.pop(data.draw(st.integers(0, len(twin.parts) - 1)))
                twin.send(part, data.draw(SEVERAL))
            elif step == "refuse":
                twin.refuse(data.draw(st.integers(0, BLOCKS - 1)), data.draw(st.integers(15, 25)))
            elif step == "close":
                twin.close(data.draw(st.integers(0, BLOCKS - 1)), data.draw(st.sets(st.integers(0, PARTS - 1))))
            elif step == "die":
                twin.die()
            twin.check()
        for block, expected in enumerate(twin.expected):
            if expected.away:  # an iteration ends when every sent part is answered
                twin.close(block, data.draw(st.sets(st.sampled_from([*expected.away]))))
        twin.check()


ONES = np.ones(8, np.float32)


def alike(value: int, lanes: int) -> np.ndarray:
    """Return the checksum of a block whose values are all the same."""
    return checksums(np.full((1, lanes), value))


def end_without(ledger: Ledger, *iterations: int) -> None:
    """Close every block's sum of these iterations without this worker."""
    for iteration in iterations:
        ledger.settle(iteration, np.arange(ledger.blocks), np.zeros(ledger.blocks, np.int64))


def test_two_parts_of_a_block_are_counted_together() -> None:
    """The second part carries the values that followed the first. One sum has both, or one of them, or neither."""
    for inside, aggregated, left in (((0, 1), 5, 0), ((0,), 2, 3), ((1,), 3, 2), ((), 0, 5)):
        ledger = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC)
        ledger.begin(1)
        for part, value in enumerate((2, 3)):
            add(ledger, value * ONES, 1, batch=part, current=1)
            send(ledger, 1, CODEC, part=part)
            assert sent_values(ledger, CODEC, 0, part).tolist() == [value << FRACTION_BITS] * 8
            assert sent_weight(ledger, 0, part) == WEIGHT_UNIT
        ledger.settle_results(closed(1, 0, *inside))
        totals = ledger.accounts.totals()
        assert totals.conserved
        assert np.array_equal(totals.aggregated, alike(aggregated << FRACTION_BITS, 8))
        assert ledger.residual.pending.tolist() == [[left << FRACTION_BITS] * 8]
        assert ledger.accounts.waiting.tolist() == [(2 - len(inside)) * WEIGHT_UNIT]
        assert ledger.accounts.account().late_since == (0 if len(inside) == 2 else 1)


def test_parts_in_different_lanes_are_each_counted_as_sent() -> None:
    codecs = {0: CODEC, 2: FixedPoint(workers=3, width=8)}
    ledger = Ledger(LedgerStorage.in_memory(blocks=3, lanes=8), 0, codecs)
    ledger.begin(1)
    for part, lanes in enumerate((0, 2, 0)):
        add(ledger, np.full(24, 1.3, np.float32), 1, batch=part, current=1)
        scale = CODEC.exponent if lanes == 0 else 4
        ledger.sending(1, np.arange(3), lanes, np.full(3, scale), part)
    for block, parts in enumerate(((0, 1, 2), (1, 2), (0, 1))):
        ledger.settle_results(closed(1, block, *parts))
    entered = 3 * to_fixed(np.full(1, 1.3, np.float32))
    aggregated = (entered - ledger.residual.pending[:, 0]) / 2.0**40
    wide, narrow = 1.3, round(1.3 * 16) / 16
    assert aggregated == pytest.approx([3 * wide, wide + narrow + (wide - narrow), wide + narrow], abs=1e-6), (
        "the next part has the remainder of the narrow one"
    )
    assert ledger.accounts.totals().conserved


def test_late_part_in_flight_is_not_sent_twice() -> None:
    """A gradient of iteration 1 is merged into iteration 3 as part 1; the gradient of iteration 3 follows as part 0."""
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=8), CODEC, age=HALVED)
    end_without(ledger, 1, 2)
    ledger.begin(3)
    add(ledger, np.full(16, 8, np.float32), 1, current=3)
    assert ledger.sent.free == 1
    send(ledger, 3, CODEC, np.array([0]), part=1)
    assert (sent_weight(ledger, 0, 1), ledger.accounts.unsent(3).tolist()) == (64, [0, 64]), (
        "the pending gradient is two iterations old"
    )
    assert ledger.sent.unsettled(3) == [0]
    add(ledger, np.full(16, 3, np.float32), 3, current=3)
    send(ledger, 3, CODEC)
    sent = [sent_values(ledger, CODEC, block)[0] >> FRACTION_BITS for block in range(2)]
    assert sent == [3, 5], "without a part in flight both are sent together"
    assert [sent_weight(ledger, block) for block in range(2)] == [256, 256 + 64]
    assert ledger.accounts.unsent(3).tolist() == [0, 0]
    assert ledger.sent.free == 2
    ledger.settle_results(closed(3, 0, 0), closed(3, 1))
    assert ledger.accounts.waiting.tolist() == [32, 160], "the omitted half is one iteration older"
    assert (ledger.residual.pending[:, 0] >> FRACTION_BITS).tolist() == [1, 2]
    assert ledger.accounts.account().late_since == 1
    ledger.begin(4)
    assert ledger.sent.free == 1
    send(ledger, 4, CODEC)
    assert [sent_weight(ledger, block) for block in range(2)] == [32, 160]
    ledger.settle_results(closed(4, 0, 0), closed(4, 1, 0))
    assert ledger.accounts.account().late_since == 0
    assert ledger.accounts.totals().conserved


def test_gradients_older_than_the_limit_are_in_no_sum() -> None:
    """A block's age is that of its oldest waiting gradient; all that waits in the block is discarded with it."""
    for limit, waits in ((3, [256, 512, 768, 0, 256]), (1, [256, 0, 256, 0, 256]), (9, [256, 512, 768, 1024, 1280])):
        ledger = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC, age=AgeWeight(limit=limit))
        for iteration, weight in enumerate(waits, 1):
            ledger.begin(iteration)
            add(ledger, ONES, iteration)
            send(ledger, iteration, CODEC)
            ledger.settle_results(closed(iteration, 0))
            assert ledger.accounts.waiting.tolist() == [weight], f"at the limit {limit}, iteration {iteration}"
        assert ledger.accounts.totals().conserved
    late = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC, age=AgeWeight(limit=3))
    for begun, current, ended, weight in ((3, 4, 3, 256), (4, 8, 5, 256), (6, 8, 5, 512)):
        end_without(late, ended)
        add(late, ONES, begun, current=current)
        assert late.accounts.waiting.tolist() == [weight], "only the gradient beyond the age limit is discarded"
    assert late.accounts.account().late_since == 3


def test_gradient_that_arrives_after_its_block_closed_is_an_iteration_older() -> None:
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=8), CODEC, age=HALVED)
    ledger.begin(1)
    ledger.settle_results(closed(1, 1))
    add(ledger, np.ones(16, np.float32), 1)
    assert ledger.accounts.waiting.tolist() == [256, 128]
    ledger.begin(4)
    ledger.settle_results(closed(3, 0))
    ledger.settle_results(closed(4, 1))
    add(ledger, np.ones(16, np.float32), 2, current=4)
    assert ledger.accounts.waiting.tolist() == [128 + 64, 64 + 32]
    account = ledger.accounts.account()
    assert (account.entered, account.summed) == (2, 0)
    assert (account.waiting, account.discarded) == ((128 + 64 + 64 + 32) / 512, 2 - (128 + 64 + 64 + 32) / 512)


def test_gradient_is_not_late_in_a_block_whose_sums_it_has_not_missed() -> None:
    """Block 0 has a sum in every iteration, block 1 in the third alone."""
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=8), CODEC, age=AgeWeight(weight=0.5, limit=2))
    for iteration in (1, 2, 3):
        ledger.begin(iteration)
        add(ledger, np.ones(16, np.float32), iteration)
        send(ledger, iteration, CODEC, np.arange(1 + (iteration == 3)))
        ledger.settle_results(closed(iteration, 0, 0))
    assert ledger.accounts.waiting.tolist() == [0, 3 * 256], "a block that the plan leaves out keeps its weight"
    assert (ledger.accounts.missed(1).any(), ledger.accounts.account().late_since) == (False, 0)
    ledger.settle_results(closed(3, 1))
    assert ledger.accounts.waiting.tolist() == [0, 3 * 128], "all of block 1 has missed one sum"
    assert (ledger.accounts.missed(1).tolist(), ledger.accounts.missed(2).any()) == ([False, True], False)
    assert ledger.accounts.account().late_since == 3
    ledger.begin(8)
    assert not ledger.accounts.missed(2).any(), "no sum of the block has closed meanwhile"
    add(ledger, np.ones(16, np.float32), 4, current=8)
    assert ledger.accounts.waiting.tolist() == [256, 3 * 128 + 256], "no sum has closed since this gradient was begun"
    send(ledger, 8, CODEC, np.array([1]))
    ledger.settle_results(closed(8, 1))
    assert ledger.accounts.waiting.tolist() == [256, 0], "beyond the limit of two iterations nothing is left"
    assert ledger.accounts.totals().conserved


def test_block_has_missed_two_sums_when_its_second_closes() -> None:
    ledger = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC)
    missed = []
    for iteration in (1, 5, 9):
        ledger.begin(iteration)
        add(ledger, ONES, iteration)
        send(ledger, iteration, CODEC)
        ledger.settle_results(closed(iteration, 0))
        missed.append(ledger.accounts.missed(2).tolist())
    assert missed == [[False], [True], [True]]


def test_result_with_an_unsent_part_is_refused() -> None:
    ledger = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC)
    ledger.begin(1)
    add(ledger, ONES, 1)
    send(ledger, 1, CODEC)
    with pytest.raises(ProtocolError, match=r"block 0 of iteration 1 has a contribution of worker 0, which sent none"):
        ledger.settle_results(closed(1, 0, 0, 1))
    assert not ledger.accounts.totals().aggregated.any()


def test_array_of_results_without_news_changes_nothing() -> None:
    ledger = ledger_of(LedgerStorage.in_memory(blocks=4, lanes=8), CODEC)
    ledger.begin(1)
    for part in (0, 1):
        add(ledger, np.ones(32, np.float32), 1, batch=part)
        send(ledger, 1, CODEC, part=part)
    ledger.settle(1, np.array([3, 0, 4, -1]), np.array([0b11, 0b10, 0b1, 0b1]))
    assert (ledger.accounts.waiting // WEIGHT_UNIT).tolist() == [1, 2, 2, 0]
    assert ledger.sent.unsettled(1) == [1, 2]
    before = ledger.residual.pending.copy()
    for iteration, parts in ((1, 0b1), (0, 0)):
        ledger.settle(iteration, np.array([3, 0]), np.array([parts, parts]))
    ledger.settle(1, np.array([], int), np.array([], int))
    for parts in (0b100, 0b10000, -1):
        with pytest.raises(
            ProtocolError, match="block 2 of iteration 1 has a contribution of worker 0, which sent none"
        ):
            ledger.settle(1, np.array([1, 2]), np.array([0b1, parts]))
    assert np.array_equal(ledger.residual.pending, before), "block 1 must not change either"
    with pytest.raises(ProtocolError, match="2 blocks must have 2 bitmaps of parts, got 1"):
        ledger.settle(1, np.array([1, 2]), np.array([0b1]))


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 8, 300]))
def test_checksum_is_linear_and_detects_a_changed_bit(seed: int, lanes: int) -> None:
    random = np.random.default_rng(seed)
    one, other = random.integers(-(2**63), 2**63, (2, 3, lanes))
    assert np.array_equal(checksums(one + other), checksums(one) + checksums(other))
    assert np.array_equal(checksums(-one), -checksums(one))
    changed, row, lane = one.copy(), random.integers(3), random.integers(lanes)
    changed[row, lane] ^= 1 << int(random.integers(63))
    assert np.flatnonzero(checksums(changed) != checksums(one)).tolist() == [row]
    exchanged = one[:, random.permutation(lanes)]
    assert np.array_equal((checksums(exchanged) == checksums(one)), (exchanged == one).all(axis=1))


@pytest.mark.parametrize(("width", "lanes", "least"), [(32, 2048, 16), (16, 4096, 12), (8, 8192, 10), (4, 16384, 9)])
def test_ledger_takes_little_more_than_the_residual_and_the_sent_lanes(
    tmp_path: Path, width: int, lanes: int, least: int
) -> None:
    """Bytes an element, of the layout without unused parts, and on the disk, where unused parts are holes."""
    blocks, path = 64, tmp_path / "ledger"
    storage = LedgerStorage.in_file(path, job=1, rank=0, blocks=blocks, lanes=lanes, width=width)
    codec = FixedPoint(workers=1, width=width)
    ledger = ledger_of(storage, codec)
    for iteration in range(1, 5):
        ledger.begin(iteration)
        add(ledger, np.ones(blocks * lanes, np.float32), iteration)
        send(ledger, iteration, codec)
        ledger.settle(iteration, np.arange(blocks), np.ones(blocks, int))
    whole = sum(getattr(storage, field.name).nbytes for field in fields(storage))
    used = whole - storage.packed[1:].nbytes
    assert least < used / storage.pending.size < least + 0.5
    assert least < path.stat().st_blocks * 512 / storage.pending.size < least + 0.5


def test_bench_reports_the_cost_of_a_ledger() -> None:
    rows = measure((32, 8), (2048, 256), elements=10_000, repetitions=1)
    assert [(row["codec"], row["lanes"], int(row["bytes"])) for row in rows] == [
        ("int32", 2048, 16),
        ("int32", 256, 17),
        ("int8", 2048, 10),
        ("int8", 256, 11),
    ]
    assert all(row["sum_ms"] >= row["settle_ms"] > 0 for row in rows)


@pytest.mark.parametrize(("variable", "value"), [("CC", "/nowhere/cc"), ("KOFN_CACHE", "/dev/null/x")])
def test_ledger_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    library.cache_clear()
    try:
        with pytest.raises(LedgerError, match=r"a worker's ledger is native code: .*(no C compiler|Not a directory)"):
            ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC)
    finally:
        monkeypatch.undo()
        library.cache_clear()


# -- kills at any moment

DYING = """
import sys, numpy as np
from pathlib import Path
from kofn_host.compression.age_weight import AgeWeight
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.protocol.results import BlockId, Result
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.compression.ledger import Ledger
from tests.host.lab import add

def settle(block):
    members = 4 if block % 2 else 8
    id = BlockId(iteration, block)
    scale = codec.exponent
    ledger.settle_results(Result(id=id, scale=scale, lanes=0, k=1, count=1, weight=256, members=members, values=b""))

storage = LedgerStorage.in_file(Path(sys.argv[1]), job=1, rank=2, blocks=64, lanes=64)
codec = FixedPoint(workers=1, gradient_range=2.0**20)
ledger = Ledger(storage, 2, {0: codec}, age=AgeWeight(weight=float(sys.argv[2])))
iteration, everything, scales = max(1, ledger.begun), np.arange(64), np.full(64, codec.exponent)
gradient = np.ones(64 * 64, np.float32)
while True:
    print(iteration, flush=True)
    ledger.begin(iteration)
    for block in range(0, 32, 2):
        settle(block)
    for blocks in everything[::3], None:
        add(ledger, gradient, iteration, blocks)
    ledger.sending(iteration, everything, 0, scales)
    for block in range(64):
        settle(block)
    iteration += 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("age", [NOTHING_FADES, DROPPED], ids=["kept", "dropped"])
def test_ledger_survives_a_kill_at_any_moment(tmp_path, age):
    """Each block is aggregated completely, or discarded completely, or unchanged; even blocks always come too late."""
    path, before = tmp_path / "worker.ledger", 0
    for iterations, delay_ms in ((1, 0), (2, 1), (3, 2), (4, 5), (5, 1)):
        command = [sys.executable, "-c", DYING, path, str(age.weight)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            for _ in range(iterations):
                process.stdout.readline()
            time.sleep(delay_ms / 1000)
            process.kill()
        storage = LedgerStorage.in_file(path, job=1, rank=2, blocks=64, lanes=64)
        ledger = ledger_of(storage, FixedPoint(workers=1, gradient_range=2.0**20), 2, age=age)
        assert ledger.begun >= before
        unsettled = ledger.sent.unsettled(ledger.begun)
        for block in range(64):
            if block % 2 == 0 or block in unsettled:
                ledger.settle_results(result(ledger.begun, block, 0b100 if block % 2 else 0b1000))
        assert ledger.sent.unsettled(ledger.begun) == []
        totals, left = ledger.accounts.totals(), ledger.residual.pending
        assert totals.conserved
        assert np.array_equal(left, np.repeat(ledger.accounts.waiting << FRACTION_BITS - 8, 64).reshape(64, 64)), (
            "each pending gradient consists of ones"
        )
        entered = storage.records["entered_weight"]
        assert np.array_equal(totals.gradients, [alike(int(weight) << 32, 64)[0] for weight in entered])
        assert not totals.aggregated[::2].any()
        assert not totals.discarded[1::2].any()
        kept, none = (totals.pending, totals.discarded)[:: 1 if age is NOTHING_FADES else -1]
        assert np.array_equal(kept[::2], totals.gradients[::2]), "a late block is stashed or discarded as a whole"
        assert not none[::2].any()
        before = ledger.begun
    assert before > 7


def same_ledger(one: Ledger, other: Ledger) -> None:
    """Check that two ledgers, and their next contributions, are equal to the last bit."""
    assert np.array_equal(one.residual.pending, other.residual.pending)
    ours, theirs = one.accounts.totals(), other.accounts.totals()
    for name in ("gradients", "aggregated", "pending", "discarded"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), (
            f"the worker that continues must have the same {name}"
        )
    assert one.accounts.account() == other.accounts.account()
    assert one.accounts.waiting.tolist() == other.accounts.waiting.tolist()
    assert one.sent.free == other.sent.free


SIX = 6
"""Number of blocks; live() says how each one fares."""


def live(storage: LedgerStorage, last: int, age: AgeWeight) -> Ledger:
    """Continue from any state of the ledger to the end of iteration `last`, as an agent would.

    An iteration has three gradients: a late one of the previous iteration (part 1), its own (part 0), and another batch
    of the same parameters (part 2). Each is entered in two pieces, of which a kill may leave the first.

    The sum of block 0 has all parts. Block 1 closes before any part is there. The sum of block 2 has none, that of
    block 3 the late one, that of block 4 parts 0 and 2 by turns. Block 5 is refused at its scale, aggregated and taken
    back.
    """
    ledger = ledger_of(storage, CODEC, age=age)
    for iteration in range(max(ledger.begun, 1), last + 1):
        ledger.begin(iteration)
        ledger.settle_results(closed(iteration, 1))
        for part, begun, batch in ((1, iteration - 1, 3), (0, iteration, 0), (2, iteration, 1)):
            gradient = np.random.default_rng([iteration, part]).normal(size=SIX * 2).astype(np.float32)
            for blocks in np.array([4, 2, 1]), None:
                add(ledger, gradient, begun, blocks, batch=batch, current=iteration)
            send(ledger, iteration, CODEC, part=part)
            whole = np.flatnonzero(ledger.accounts.unsent(iteration) == 0)
            for block in np.intersect1d(whole, ledger.sent.unsettled(iteration)):
                sent = [
                    other for other in (1, 0, 2) if storage.sent[other, iteration % 2, block]["iteration"] == iteration
                ]
                rest = ledger.residual.pending[block] - sum(sent_values(ledger, CODEC, block, other) for other in sent)
                assert np.abs(rest).max() <= 1 << 40 - 20 - 1, "notes must equal the pending values up to rounding"
            if not part and 5 in ledger.sent.unsettled(iteration) and noted(ledger, 5).scale != 20:
                send_again(ledger, 5, iteration, CODEC, 20)
        for block, parts in enumerate([(0, 1, 2), (), (), (1,), (2 * (iteration % 2),), (0,)]):
            ledger.settle_results(closed(iteration, block, *parts))
        ledger.reconcile(closed(iteration, 5))
    return ledger


AGES = [NOTHING_FADES, HALVED, DROPPED, AgeWeight(weight=0.5, limit=2)]


def go_on(age: AgeWeight, mutant: str = "") -> None:
    """Check that a worker that continues after a kill at any store has the ledger of an undisturbed one."""
    storage = LedgerStorage.in_memory(blocks=SIX, lanes=2, in_place=False)
    found = left_by_kills(
        moments(storage, lambda: live(storage, 3, age), mutant), lambda died: ledger_of(died, CODEC, age=age), mutant
    )
    whole = live(storage, 3, age)
    assert whole.accounts.totals().conserved
    assert whole.accounts.account().summed > 1
    assert len(found) > 80
    for died in found:
        ledger = ledger_of(died, CODEC, age=age)
        assert ledger.accounts.totals().conserved
        assert (ledger.accounts.waiting >= 0).all()
        same_ledger(live(died, 3, age), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "age", [AGES[0], *(pytest.param(age, marks=pytest.mark.long) for age in AGES[1:-1]), AGES[-1]], ids=str
)
def test_ledger_after_a_kill_at_any_store_equals_an_undisturbed_one(age: AgeWeight) -> None:
    """Gradients, sums and discarded values agree, with their weights and ages, whichever part of a block was being
    changed.
    """
    go_on(age)


def refuse(mutant: str = "") -> None:
    """Kill a worker while it encodes a late part at another scale; a newer gradient waits."""
    storage = LedgerStorage.in_memory(blocks=1, lanes=2, in_place=False)
    ledger = ledger_of(storage, CODEC)
    end_without(ledger, 1, 2)
    ledger.begin(3)
    for begun, part in ((1, 1), (3, None)):
        add(ledger, ONES[:2], begun, current=3)
        if part:
            send(ledger, 3, CODEC, part=part)
    found = left_by_kills(
        moments(storage, lambda: send_again(ledger_of(storage, CODEC), 0, 3, CODEC, 20, part=1), mutant),
        lambda died: ledger_of(died, CODEC),
        mutant,
    )
    oldest = dict[int, int]()
    for died in found:
        ledger = ledger_of(died, CODEC)
        unsent = int(ledger.accounts.unsent(3)[0]) // WEIGHT_UNIT
        ledger.settle_results(closed(3, 0, *[1][: unsent < 2]))
        now = ledger.accounts.account().late_since
        assert oldest.setdefault(unsent, now) == now, "pending gradients must keep their age"
    assert oldest == {1: 3, 2: 1, 0: 0}


def test_kill_during_a_refusal_does_not_age_waiting_gradients() -> None:
    refuse()


def sends_on(storage: LedgerStorage, iteration: int, given: int) -> Ledger:
    """Send in `iteration` after sending in the previous one; all workers are known to have given to
    iteration `given`.
    """
    ledger, known = ledger_of(storage, CODEC), structs.Core(given=given)
    protocol: Any = SimpleNamespace(address=ctypes.c_void_p(ctypes.addressof(known)), keeps=known)
    ledger.attach_protocol(protocol)
    ledger.begin(iteration)
    add(ledger, np.full(4, iteration, np.float32), iteration)
    send(ledger, iteration, CODEC)
    return ledger


@pytest.mark.parametrize(("given", "kept", "rows"), [(0, True, 2), (1, True, 2), (2, False, 1), (3, False, 1)])
def test_sent_lanes_are_overwritten_once_all_have_given_to_the_next_iteration(given, kept, rows) -> None:
    """Until then the others may repeat a sum without this worker, whose contribution would become pending again."""
    storage = LedgerStorage.in_memory(blocks=2, lanes=2)
    sends_on(storage, 1, 0).settle(1, np.arange(2), np.array([1, 0]))
    ledger = sends_on(storage, 2, given)
    assert ledger.sent.whole(1).any() == kept
    assert (ledger.sent.whole(2)[0] != 0).all()
    assert storage.packed[0].any(axis=(1, 2)).sum() == rows, "no other memory may change"
    with contextlib.nullcontext() if kept else pytest.raises(ProtocolError, match="no longer keeps in iteration 2"):
        ledger.reconcile(closed(1, 0))
    assert ledger.accounts.totals().conserved


def write_over(mutant: str = "") -> None:
    """Check that after a kill the sent lanes are the old ones, the new ones, or unknown."""
    storage = LedgerStorage.in_memory(blocks=1, lanes=4, in_place=False)
    before = sends_on(storage, 1, 0).sent.whole(1)
    found = moments(storage, lambda: sends_on(storage, 2, 2), mutant)
    after = ledger_of(storage, CODEC).sent.whole(2)
    for died in found:
        ledger = ledger_of(died, CODEC)
        noted_then = ledger.sent.whole(1), ledger.sent.whole(2)
        assert all(
            not now.any() or np.array_equal(now, right) for now, right in zip(noted_then, (before, after), strict=True)
        ), "each note must be a sent part"


def test_kill_while_sent_lanes_are_overwritten_leaves_no_wrong_lanes() -> None:
    write_over()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_orders_of_stores_are_detected(mutant: str) -> None:
    with pytest.raises(AssertionError, match=r"must keep their age|conserved|opening again|each note"):
        refuse(mutant)
        write_over(mutant)
        for age in AGES:
            go_on(age, mutant)


@pytest.mark.parametrize("age", [NOTHING_FADES, DROPPED], ids=["kept", "dropped"])
def test_weights_match_the_values_after_a_kill_at_any_store(age):
    """All gradients are ones, so the values of a residual, and of a contribution, equal their number of gradients."""
    left = [0, 4, 4, 4] if age is NOTHING_FADES else [0, 0, 0, 1]

    def live_on_ones(storage: LedgerStorage, last: int) -> Ledger:
        ledger = ledger_of(storage, CODEC, age=age)
        for iteration in range(max(ledger.begun, 1), last + 1):
            ledger.begin(iteration)
            ledger.settle_results(closed(iteration, 1))
            for blocks in np.array([2, 1]), None:
                add(ledger, ONES, iteration, blocks)
            send(ledger, iteration, CODEC)
            for block in (0, 2, 3):
                brought = sent_values(ledger, CODEC, block)[0] >> FRACTION_BITS
                assert sent_weight(ledger, block) == brought * WEIGHT_UNIT
            for block, parts in ((0, (0,)), (2, ()), (3, (0,) if iteration % 2 == 0 else ())):
                ledger.settle_results(closed(iteration, block, *parts))
            ledger.reconcile(closed(iteration, 3))
        return ledger

    storage = LedgerStorage.in_memory(blocks=4, lanes=2, in_place=False)
    found = left_by_kills(
        moments(storage, lambda: live_on_ones(storage, 4)), lambda died: ledger_of(died, CODEC, age=age)
    )
    assert ledger_of(storage, CODEC, age=age).accounts.waiting.tolist() == [WEIGHT_UNIT * number for number in left]
    assert len(found) > 80
    for died in found:
        ledger = ledger_of(died, CODEC, age=age)
        assert np.array_equal(
            ledger.residual.pending, np.repeat(ledger.accounts.waiting << FRACTION_BITS - 8, 2).reshape(4, 2)
        )
        assert live_on_ones(died, 4).accounts.waiting.tolist() == [WEIGHT_UNIT * number for number in left]


def test_gradient_is_entered_once_although_a_later_one_is_partly_entered():
    """A worker that died during its third gradient of an iteration computes the second again, which all its blocks
    have.
    """
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=4), CODEC)
    for batch, blocks in ((0, None), (1, None), (2, np.array([1]))):
        add(ledger, ONES, 7, blocks, batch=batch)
    assert ledger.accounts.waiting.tolist() == [2 * WEIGHT_UNIT, 3 * WEIGHT_UNIT]
    for batch in (0, 1, 2):
        add(ledger, ONES, 7, batch=batch)
    assert ledger.accounts.waiting.tolist() == [3 * WEIGHT_UNIT] * 2
    assert ledger.entered == 7


def test_weight_of_a_contribution_is_at_least_minimal_and_fits_a_sum():
    codec = FixedPoint(workers=64, gradient_range=2.0**20)
    ledger, most = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), codec), WEIGHT_MAX // WEIGHT_UNIT
    for iteration in range(1, most + 10):
        add(ledger, ONES, iteration)
        send(ledger, iteration, codec)
        assert sent_weight(ledger, 0) == min(iteration * WEIGHT_UNIT, WEIGHT_MAX)
        ledger.settle_results(closed(iteration, 0))
    assert 64 * PARTS * sent_weight(ledger, 0) < 2**32
    add(ledger, ONES, most + 10)
    send(ledger, most + 10, codec)
    ledger.settle_results(closed(most + 10, 0, 0))
    assert ledger.accounts.waiting.tolist() == [0], "all gradients are aggregated, whatever the header's weight is"
    found_closed = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), codec, age=DROPPED)
    found_closed.settle_results(closed(1, 0))
    add(found_closed, ONES, 1)
    send(found_closed, 1, codec)
    assert (found_closed.accounts.waiting.tolist(), sent_weight(found_closed, 0)) == ([0], 1)


# -- results that peers have repeated


def test_repeated_result_without_this_worker_is_taken_back():
    ledger = ledger_of(LedgerStorage.in_memory(blocks=2, lanes=8), CODEC)
    for iteration in (1, 2):
        add(ledger, np.arange(16, dtype=np.float32), iteration)
        send(ledger, iteration, CODEC)
        for block in range(2):
            ledger.settle_results(closed(iteration, block, 0))
    before = ledger.accounts.totals()
    for same in (closed(2, 0, 0), closed(1, 1), closed(3, 1)):
        ledger.reconcile(same)
    assert np.array_equal(ledger.accounts.totals().aggregated, before.aggregated), (
        "repeated, older and future results must not count"
    )
    for _ in range(2):
        ledger.reconcile(closed(2, 1))
    after = ledger.accounts.totals()
    assert after.conserved
    values = to_fixed(np.arange(16, dtype=np.float32)).reshape(2, 8)
    assert np.array_equal(after.aggregated, checksums(values * np.array([[2], [1]])))
    assert np.array_equal(ledger.residual.pending, values * np.array([[0], [1]]))
    assert ledger.accounts.waiting.tolist() == [0, WEIGHT_UNIT]


@pytest.mark.parametrize("mine", [(0, 1), (0, 1, 2), (1,)])
@pytest.mark.parametrize("theirs", [(), (0,), (1,), (0, 1)])
def test_repeated_result_with_other_parts_replaces_the_first(mine, theirs):
    """The ledger is as if the peers' result had been the only one."""
    storage, values = LedgerStorage.in_memory(blocks=2, lanes=4), (1, 2, 4)
    ledger = ledger_of(storage, CODEC)
    ledger.begin(1)
    for part, value in enumerate(values):
        add(ledger, value * ONES, 1, batch=part)
        send(ledger, 1, CODEC, part=part)
    before = copied(storage)
    ledger.settle_results(closed(1, 0, *mine), closed(1, 1, 0))
    other = ledger_of(before, CODEC)
    other.settle_results(closed(1, 0, *theirs), closed(1, 1, 0))
    for _ in range(2):
        ledger.reconcile(closed(1, 0, *theirs))
    same_ledger(ledger, other)
    same_ledger(ledger_of(storage, CODEC), other)
    aggregated = sum(values[part] for part in theirs)
    assert (ledger.residual.pending[:, 0] >> FRACTION_BITS).tolist() == [sum(values) - aggregated, sum(values) - 1]


def test_weight_is_right_when_a_block_is_encoded_again_after_a_result_was_taken_back():
    """The worker died in iteration 2. The others have repeated the sum of iteration 1 and now refuse its scale."""
    storage = LedgerStorage.in_memory(blocks=1, lanes=8)
    ledger = ledger_of(storage, CODEC)
    for iteration in (1, 2):
        ledger.begin(iteration)
        add(ledger, ONES, iteration)
        send(ledger, iteration, CODEC)
        if iteration == 1:
            ledger.settle_results(closed(1, 0, 0))
    again = ledger_of(storage, CODEC)
    again.reconcile(closed(1, 0))
    send(again, 2, CODEC)
    assert sent_weight(again, 0) == WEIGHT_UNIT, "the part stays in flight, because the switch may have it"
    assert sent_values(again, CODEC, 0)[0] == 1 << FRACTION_BITS
    assert again.accounts.unsent(2).tolist() == [WEIGHT_UNIT]
    send_again(again, 0, 2, CODEC, CODEC.exponent - 1)
    assert sent_weight(again, 0) == 2 * WEIGHT_UNIT
    assert sent_values(again, CODEC, 0)[0] == 2 << FRACTION_BITS
    again.settle_results(closed(2, 0, 0))
    assert again.accounts.waiting.tolist() == [0]
    assert not again.residual.pending.any()


def test_values_taken_back_are_pending_and_never_discarded():
    storage = LedgerStorage.in_memory(blocks=1, lanes=8)
    ledger = ledger_of(storage, CODEC, age=DROPPED)
    add(ledger, np.ones(8, np.float32), 1)
    send(ledger, 1, CODEC)
    ledger.settle_results(closed(1, 0, 0))
    ledger.reconcile(closed(1, 0))
    for totals in (ledger.accounts.totals(), ledger_of(storage, CODEC, age=DROPPED).accounts.totals()):
        assert totals.pending.all()
        assert np.array_equal(totals.pending, totals.gradients)
        assert not totals.discarded.any()
    assert ledger.accounts.account().late_since == 1


def test_values_taken_back_are_as_old_as_the_newest_gradient():
    """They were in time once; values that wait with them have the same age."""
    for parts, oldest in (((0,), 2), ((1, 0), 1)):
        ledger = ledger_of(LedgerStorage.in_memory(blocks=1, lanes=8), CODEC)
        end_without(ledger, 1)
        ledger.begin(2)
        add(ledger, ONES, 1, current=2)
        for part in parts[:-1]:
            send(ledger, 2, CODEC, part=part)
        add(ledger, ONES, 2)
        send(ledger, 2, CODEC)
        ledger.settle_results(closed(2, 0, 0))
        ledger.reconcile(closed(2, 0))
        assert ledger.accounts.waiting.tolist() == [2 * WEIGHT_UNIT]
        assert ledger.accounts.account().late_since == oldest


def test_ledger_of_another_worker_or_layout_is_refused(tmp_path):
    path = tmp_path / "ledger"
    LedgerStorage.in_file(path, job=1, rank=2, blocks=3, lanes=64)
    others: tuple[dict[str, Any], ...] = {"rank": 1}, {"lanes": 32}, {"width": 8}, {"residual": "bfloat16"}
    for other in others:
        with pytest.raises(
            LedgerError,
            match="got that of job 1, rank 2, 3 blocks of 64 lanes of up to 32 bits, residuals of 64: remove it",
        ):
            LedgerStorage.in_file(path, **{"job": 1, "rank": 2, "blocks": 3, "lanes": 64, **other})
    with pytest.raises(LedgerError, match="No such file"):
        LedgerStorage.in_file(tmp_path / "none" / "ledger", job=1, rank=1, blocks=3, lanes=64)


@pytest.mark.parametrize("content", [b"6kb\0nfok" + bytes(5000), b"something else", b"short"])
def test_file_that_is_no_ledger_is_refused_and_left_unchanged(tmp_path, content):
    path = tmp_path / "ledger"
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="holds no ledger of this version: remove it, or choose another place"):
        LedgerStorage.in_file(path, job=1, rank=2, blocks=3, lanes=64)
    assert path.read_bytes() == content


def test_restarted_worker_sends_the_same_lanes(tmp_path):
    """Values entered later do not change them: the switch may hold the first contributions already."""
    storage = LedgerStorage.in_file(tmp_path / "b", job=1, rank=0, blocks=2, lanes=8)
    first = ledger_of(storage, CODEC)
    first.begin(5)
    add(first, np.ones(16, np.float32), 4, current=5)
    send(first, 5, CODEC, part=1)
    add(first, np.arange(16, dtype=np.float32), 5)
    send(first, 5, CODEC)
    sent, packed = storage.sent.copy(), storage.packed.copy()
    again = ledger_of(LedgerStorage.in_file(tmp_path / "b", job=1, rank=0, blocks=2, lanes=8), CODEC)
    again.begin(4)  # a peer's replica may be older
    assert (again.begun, again.entered, again.sent.unsettled(5)) == (5, 5, [0, 1])
    again.begin(5)
    assert (again.sent.free, again.accounts.unsent(5).tolist()) == (2, [0, 0])
    again.settle_results(closed(5, 1, 0))
    add(again, np.ones(16, np.float32), 5)
    for part in (0, 1):
        send(again, 5, CODEC, part=part)
    assert np.array_equal(storage.sent, sent)
    assert np.array_equal(storage.packed, packed)
    assert np.array_equal(again.sent.whole(5), packed[:, 0].view(">i4"))
    assert not again.sent.whole(4).any()
    again.settle_results(closed(5, 0, 0, 1))
    assert again.accounts.totals().conserved
    with pytest.raises(ProtocolError, match="which sent none"):
        again.settle_results(closed(6, 0, 0))


@given(st.integers(1, 64), st.floats(0.001, 1000), arrays(np.int64, 32, elements=st.integers(-(2**60), 2**60)))
def test_lanes_of_n_addends_never_overflow(workers, gradient_range, values):
    codec = FixedPoint(workers=workers, gradient_range=gradient_range)
    lanes = codec.encode(values, codec.exponent)
    assert np.abs(lanes.astype(np.int64)).max() * workers < 2**31


def test_rounding_leaves_at_most_half_a_step():
    codec = FixedPoint(workers=4, gradient_range=64.0)
    values = to_fixed(np.linspace(-3, 3, 1001, dtype=np.float32))
    left = values - codec.decode(codec.encode(values, codec.exponent), codec.exponent, 1)
    assert np.abs(left).max() <= 1 << (FRACTION_BITS - codec.exponent - 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**21])
def test_bad_gradients_never_reach_the_wire(bad):
    gradient = np.array([0.5, bad], np.float32)
    with pytest.raises(GradientError, match="gradient element 1 must be finite"):
        to_fixed(gradient)


def test_gradient_is_the_slope_of_the_loss():
    model = Perceptron((8, 6), seed=0)
    batch = load_shard(0, 4, seed=1).batch(1, 16)
    _, gradient = model.gradient(batch)
    for element in np.argsort(-np.abs(gradient))[:10]:
        original = model.parameters[element]
        losses = []
        for step in (2e-3, -2e-3):
            model.parameters[element] = original + step
            losses.append(model.gradient(batch)[0])
        model.parameters[element] = original
        assert gradient[element] == pytest.approx((losses[0] - losses[1]) / 4e-3, rel=0.03)


def test_shards_share_the_held_out_images_and_nothing_else():
    shards = [load_shard(rank, 3, seed=7) for rank in range(3)]
    assert sum(len(shard.train.labels) for shard in shards) + len(shards[0].held_out.labels) == 1797
    assert all(np.array_equal(shard.held_out.images, shards[0].held_out.images) for shard in shards)
    assert np.array_equal(shards[0].batch(5, 8).labels, load_shard(0, 3, seed=7).batch(5, 8).labels)
    assert not np.array_equal(shards[0].batch(5, 8).images, shards[0].batch(6, 8).images)


def test_owned_classes_are_at_one_worker_alone():
    owned = (ClassShard(worker=1, classes=(8, 9)), ClassShard(worker=3, classes=(0,)))
    shards = [load_shard(rank, 5, 7, owned) for rank in range(5)]
    held = [set(shard.train.labels.tolist()) for shard in shards]
    assert held == [set(range(1, 8)), {8, 9}, set(range(1, 8)), {0}, set(range(1, 8))]
    sizes = [len(shard.train.labels) for shard in shards]
    assert sum(sizes) + len(shards[0].held_out.labels) == 1797
    assert max(sizes[::2]) - min(sizes[::2]) <= 1
    assert len(np.unique(np.concatenate([shard.train.images for shard in shards]), axis=0)) == sum(sizes)
    assert np.array_equal(shards[0].held_out.images, load_shard(0, 5, seed=7).held_out.images)


def test_dirichlet_shards_divide_all_images_and_none_is_empty() -> None:
    skewed, even = (
        [len(shard.train.labels) for shard in load_shards(range(8), 8, 7, (), alpha)] for alpha in (0.05, 1e6)
    )
    assert sum(skewed) == sum(even) == 1797 - 360
    assert min(skewed) >= 1
    assert max(even) - min(even) <= 10, "classes must be equal up to one image of each"
    shards = load_shards(range(8), 8, 7, (), 0.3)
    classes = np.array([np.bincount(shard.train.labels, minlength=10) for shard in shards])
    assert (classes.max(axis=0) > 0.4 * classes.sum(axis=0)).sum() >= 5, "one worker must have most images of a class"
    one = load_shard(3, 8, 7, (), 0.3)
    assert np.array_equal(one.train.labels, shards[3].train.labels), "all processes must load the same shard"
    assert np.array_equal(one.held_out.labels, load_shard(0, 8, 7).held_out.labels)


def test_momentum_is_plain_sgd_with_momentum():
    parameters = np.zeros(2, np.float32)
    optimizer = Momentum(parameters, rate=0.5, momentum=0.5)
    for _ in range(2):
        optimizer.step(np.array([1, 2], np.float32))
    assert parameters.tolist() == [-1.25, -2.5]


def test_stragglers_follow_the_config_and_repeat():
    straggler = (
        StragglerSection(workers=(0, 1), mean_ms=10.0),
        StragglerSection(workers=(1,), mean_ms=100.0, from_iteration=50),
    )
    config = Config(straggler=straggler)
    steady, changing = Drawn(config, 0), Drawn(config, 1)
    assert (steady.mean_s(1), steady.mean_s(99)) == (0.01, 0.01)
    assert (changing.mean_s(49), changing.mean_s(50)) == (0.01, 0.1)
    drawn = [changing.blocking_s(iteration) for iteration in range(50, 2050)]
    assert np.mean(drawn) == pytest.approx(0.1, rel=0.05)
    assert np.var(drawn) / np.mean(drawn) == pytest.approx(straggler[0].event_ms / 1000, rel=0.1)
    assert drawn[:5] == [Drawn(config, 1).blocking_s(iteration) for iteration in range(50, 55)]
    assert Drawn(Config(), 0).blocking_s(1) == 0


def test_roles_go_to_the_next_rank_and_around() -> None:
    straggler = (StragglerSection(workers=(0, 1), mean_ms=4.0), StragglerSection(workers=(2,), mean_ms=80.0))
    config = Config(run=RunSection(shift_every=50), job=JobSection(workers=3), straggler=straggler)
    workers = [Drawn(config, rank) for rank in range(3)]
    slow = [[rank for rank in range(3) if workers[rank].mean_s(at) == 0.08] for at in (1, 50, 51, 100, 101, 150, 151)]
    assert slow == [[2], [2], [0], [0], [1], [1], [2]]
    assert all(sorted(worker.mean_s(at) for worker in workers) == [0.004, 0.004, 0.08] for at in (1, 51, 999))
