"""Encoders turn gradients into lanes and results into the next plan: several workers, and a switch that adds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES, bit_of
from kofn_common.wire.sizes import VOTE_WORDS, WEIGHT_UNIT
from kofn_host.compression.aggregate import Aggregate, Sums, aggregate
from kofn_host.compression.codec import UNIT
from kofn_host.compression.encoder import SLICE, Encoder
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.compression.rate import DEAD_ZONE, RateEstimator
from kofn_host.errors import AgentError
from kofn_host.kernels.lanes import pack, unpack, width_of
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.instructions import Packed
from kofn_host.protocol.results import BlockId, BlockResults, Result
from tests.host.lab import packed_sums, to_fixed
from tests.host.protocol.watched import Watched

ELEMENTS = 3000
JOB = JobSection(workers=3, words=8)


class Team:
    """Some workers' encoders; `sum_up` plays the switch."""

    def __init__(self, elements: int = ELEMENTS, *, follows: bool = False, **compress: Any) -> None:
        self.compress = CompressSection(**compress)
        job = replace(JOB, words=VOTE_WORDS) if self.compress.codec == "onebit" else JOB
        self.codings = [JobCoding.of(job, self.compress, elements, follows=follows) for _ in range(JOB.workers)]
        self.coding = self.codings[0]
        self.storage = [self._storage() for _ in self.codings]
        self.encoders = [self.encoder(rank) for rank in range(JOB.workers)]
        random = np.random.default_rng(3)
        self.draw: Callable[[int], np.ndarray] = lambda size: random.normal(size=size)
        self.iteration, self.spread = 0, 2.0
        self.wire_bytes = [0] * JOB.workers  # bytes of values in this iteration

    def _storage(self) -> LedgerStorage:
        layout = self.coding.layout
        return LedgerStorage.in_memory(blocks=layout.blocks, lanes=layout.elements, width=layout.widest)

    def encoder(self, rank: int) -> Encoder:
        """Return an encoder with the worker's present ledger."""
        coding = self.codings[rank]
        return Encoder(coding, Ledger(self.storage[rank], rank, coding.codecs, feedback=self.compress.error_feedback))

    def encode(self) -> list[np.ndarray]:
        """Encode the next gradient of every worker and return these gradients."""
        self.iteration += 1
        self.wire_bytes = [0] * JOB.workers
        gradients = [
            self.draw(self.coding.elements).astype(np.float32) * np.float32(self.spread**rank)
            for rank in range(JOB.workers)
        ]
        for encoder, gradient in zip(self.encoders, gradients, strict=True):
            encoder.begin(self.iteration)
            encoder.enter(gradient, self.iteration)
            encoder.encode(self.iteration)
        return gradients

    def sum_up(self, block: int, ranks: Sequence[int]) -> Result:
        """Return the sum of a block. The first worker claims the slot; others adopt its lanes and scale as after a
        refusal.
        """
        claim = self.encoders[ranks[0]].packed(block)
        addends = [claim, *(self._as(claim, block, rank) for rank in ranks[1:])]
        width = width_of(claim.lanes)
        lanes = sum(unpack(addend.values, width, signed=False).astype(np.int64) for addend in addends)
        for rank, addend in zip(ranks, addends, strict=True):
            self.wire_bytes[rank] += len(addend.values)
        return Result(
            id=BlockId(self.iteration, block),
            scale=claim.scale,
            lanes=claim.lanes,
            k=len(ranks),
            count=len(ranks),
            weight=sum(addend.weight for addend in addends),
            members=sum(1 << rank for rank in ranks),
            values=packed_sums(lanes.astype(np.uint32).view(np.int32)[None], width, self.coding.layout.planes),
        )

    def _as(self, claim: Packed, block: int, rank: int) -> Packed:
        own = self.encoders[rank].packed(block)
        if (own.scale, own.lanes) == (claim.scale, claim.lanes):
            return own
        return self.encoders[rank].reencode(block, self.iteration, claim.scale, claim.lanes)

    def finish(self, results: list[Result]) -> list[Aggregate]:
        """Give the results to every worker and return the aggregates."""
        done = []
        for rank, (encoder, coding) in enumerate(zip(self.encoders, self.codings, strict=True)):
            settle(encoder, *results)
            finished = encoder.follow(BlockResults.of(results), self.wire_bytes[rank])
            done.append(aggregate(finished, coding, rank=rank, average="gradients"))
        return done

    def iterate(self, ranks: Sequence[int] = range(JOB.workers)) -> list[Aggregate]:
        """Run a whole iteration."""
        self.encode()
        return self.finish([self.sum_up(block, ranks) for block in self.encoders[0].blocks])

    def check(self, of_results: np.ndarray) -> None:
        """Check that no value is lost and all plans are equal."""
        ledgers = [encoder.ledger.accounts.totals() for encoder in self.encoders]
        assert all(one.conserved for one in ledgers)
        assert np.array_equal(of_results, sum(one.aggregated for one in ledgers))
        plans = [encoder.plan.to_arrays() for encoder in self.encoders]
        for plan in plans[1:]:
            assert all(np.array_equal(plan[name], plans[0][name]) for name in plan)


def settle(encoder: Encoder, *results: Result, hint: int = -1, now: float = 0.0) -> None:
    """Settle results that arrive together; `hint`: as in Deliver."""
    encoder.settle(BlockResults.of(results), np.full(len(results), hint), np.full(len(results), now))


def narrowed(encoder: Encoder, waiting: Iterable[int]) -> list[int]:
    """Return the blocks that are encoded in narrower lanes, of those that have never left."""
    return encoder.narrow(encoder.fresh & {*waiting}, encoder.ledger.begun) if encoder.narrows else []


CASES: list[dict[str, Any]] = [
    {"codec": "int32"},
    {"codec": "int32", "ratio": 0.3},
    {"codec": "int16"},
    {"codec": "int8", "rounding": "stochastic"},
    {"codec": "int4", "error_feedback": False},
    {"codec": "onebit", "ratio": 0.05, "max_send_interval": 5},
    {"codec": "auto", "ratio": 0.2},
]


@pytest.mark.parametrize("compress", CASES, ids=str)
def test_sums_equal_the_counted_gradients_and_all_plans_are_equal(compress: dict[str, Any]) -> None:
    team = Team(**compress)
    totals = np.zeros(team.coding.layout.blocks, np.int64)
    for iteration in range(1, 10):
        done = team.iterate(range(3) if iteration % 2 else [2, 0])
        assert all(np.array_equal(one.mean, done[0].mean) for one in done)
        totals += done[0].checksums
        team.check(totals)


def test_default_configuration_sends_all_blocks_at_one_scale() -> None:
    """All blocks have 32 bits and one scale; there is no summary block."""
    team = Team(codec="int32")
    gradients = team.encode()
    encoder = team.encoders[1]
    blocks = team.coding.layout.blocks
    assert (encoder.blocks.tolist(), team.coding.layout.summary) == (list(range(blocks)), None)
    packed = encoder.packed(0)
    lanes = np.floor(gradients[1][:512].astype(np.float64) * 2.0**packed.scale + 0.5)
    assert packed == Packed(pack(lanes.astype(np.int32), 32), team.coding.codecs[0].exponent, 0, WEIGHT_UNIT)  # type: ignore[attr-defined]
    plan = encoder.plan
    team.finish([team.sum_up(block, range(3)) for block in encoder.blocks])
    assert (encoder.plan.lanes, encoder.plan.ratio, encoder.plan.first) == (plan.lanes, plan.ratio, len(encoder.blocks))
    assert np.array_equal(encoder.plan.blocks, plan.blocks)


@pytest.mark.slow
def test_slices_make_the_whole_and_may_be_settled_before_the_next_is_encoded() -> None:
    team = Team(elements=2 * SLICE + 1000)
    team.encode()
    whole, encoder = team.encoders[0], team.encoders[1]
    gradient = np.random.default_rng(5).normal(size=2 * SLICE + 1000).astype(np.float32)
    encoded, seen = list[list[int]](), dict[int, Packed]()
    results = [team.sum_up(block, [0, 1, 2]) for block in whole.blocks]
    for chosen in (whole, encoder):
        settle(chosen, *results)
        chosen.begin(2)
        chosen.enter(gradient, 2)
        chosen.ledger.residual.pending[...] = whole.ledger.residual.pending
    whole.encode(2)
    team.iteration = 2
    for blocks in encoder.slices(2):
        encoded.append(blocks)
        for block in blocks:
            seen[block] = encoder.packed(block)
            settle(encoder, team.sum_up(block, [1]))
    assert [len(blocks) for blocks in encoded] == [64, 128, 256, SLICE // 512, 66], (
        "the first slice must be short, so that the link starts early"
    )
    assert seen == {block: whole.packed(block) for block in whole.blocks}
    whole_end, end = (one.follow(BlockResults.of([]), 0) for one in (whole, encoder))
    assert whole_end.encoding is not None
    assert end.encoding is not None
    assert end.encoding.error_norm == pytest.approx(whole_end.encoding.error_norm)
    assert end.encoding.residual_norm < whole_end.encoding.residual_norm


def test_gradient_that_is_not_encoded_completely_is_entered_completely() -> None:
    """A gradient is entered slice by slice. A late worker stashes all of it, once."""
    team = Team(elements=2 * SLICE + 1000)
    encoder, gradient = team.encoders[0], np.ones(2 * SLICE + 1000, np.float32)
    encoder.begin(1)
    encoder.enter(gradient, 1)
    assert not encoder.ledger.residual.pending.any()
    first = next(encoder.slices(1))
    assert np.flatnonzero(encoder.ledger.accounts.waiting).tolist() == first
    assert encoder.ledger.entered == 0, "the gradient counts only after all of it has entered"
    for _ in range(2):
        encoder.enter_rest()
        assert encoder.ledger.entered == 1
        assert np.array_equal(encoder.ledger.residual.pending.ravel()[: gradient.size], to_fixed(gradient))


@pytest.mark.slow
@pytest.mark.parametrize("compress", [{"codec": "int32"}, {"codec": "auto", "ratio": 0.2}], ids=str)
def test_results_may_arrive_singly_in_any_order(compress: dict[str, Any]) -> None:
    team = Team(elements=2 * SLICE + 1000, **compress)
    for _ in range(3):
        team.encode()
        results = [team.sum_up(block, range(3)) for block in team.encoders[0].blocks]
        sums = Sums(team.coding, team.encoders[0].plan, "gradients")
        for result in np.random.default_rng(2).permutation(len(results)):
            sums.add(BlockResults.of([results[result]]))
        finished = team.encoders[0].follow(BlockResults.of(results), 0)
        at_once = aggregate(finished, team.coding, rank=0, average="gradients")
        one_by_one = aggregate(finished, team.coding, rank=0, average="gradients", sums=sums)
        assert np.array_equal(one_by_one.checksums, at_once.checksums)
        assert np.array_equal(one_by_one.mean, at_once.mean)
        team.encoders[0].plan = finished.plan
        team.finish(results)


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_mean_is_written_where_requested_before_the_first_result(ratio: float) -> None:
    team = Team(elements=4 * 512 - 7, codec="int8", ratio=ratio)
    team.encode()
    encoder, plan = team.encoders[0], team.encoders[0].plan
    results = [team.sum_up(block, range(3)) for block in encoder.blocks]
    whole = aggregate(encoder.follow(BlockResults.of(results), 0), team.coding, rank=0, average="gradients").mean
    sums, out = Sums(team.coding, plan, "gradients"), np.full(4 * 512 - 7, np.nan, np.float32)
    sums.into(out)
    sums.add(BlockResults.of(results[:1]))
    sums.into(np.empty_like(out))
    assert sums.mean is out
    sums.leave()
    before = out.copy()
    sums.add(BlockResults.of(results[1:]))
    assert np.array_equal(out, before), "after leave() the array must not change"
    assert sums.mean.tobytes() == whole.tobytes()


def test_block_that_rests_steps_for_all_its_iterations() -> None:
    """All gradients are equal here, so the mean of the gradients in a sum is one of them."""
    team = Team(codec="int32", ratio=1 / 2, max_send_interval=4, elements=4 * 512)
    team.draw, team.spread = np.ones, 1.0
    steps, gaps = np.zeros(4), np.zeros(4, int)
    for _ in range(12):
        gaps += 1
        sent = team.encoders[0].plan.blocks
        assert len(sent) in (1, 2), "the summary block takes an eighth of the block that may be sent"
        (mean, *_) = (one.mean.reshape(4, -1)[:, 0] for one in team.iterate())
        assert np.allclose(mean[sent], gaps[sent], rtol=1e-5)
        gaps[sent] = 0
        assert not mean[np.setdiff1d(range(4), sent)].any()
        steps += mean
    assert np.allclose(steps, 12 - gaps, rtol=1e-5), "in the long run all elements make as many steps"


def test_contributors_divide_the_sum_without_rounding() -> None:
    team = Team(codec="int8", ratio=1 / 8, max_send_interval=4, elements=4 * 2048)
    for _ in range(3):
        team.encode()
        results = [team.sum_up(block, range(3)) for block in team.encoders[0].blocks]
        finished = team.encoders[0].follow(BlockResults.of(results), 0)
        by = {
            average: aggregate(finished, team.coding, rank=0, average=average)
            for average in ("gradients", "contributors")
        }
        team.encoders[0].plan = finished.plan
        team.finish(results)
    assert finished.plan.gap.max() > 1
    assert np.allclose(by["contributors"].mean, by["gradients"].mean, rtol=1e-6), (
        "both divisors must give the same mean"
    )


def test_lanes_may_differ_within_an_iteration() -> None:
    team = Team(codec="auto", ratio_control="deliverable")
    gradients = team.encode()
    results = [team.sum_up(0, [0, 1, 2])]
    for encoder in team.encoders:
        settle(encoder, results[0], hint=2)
    later = team.encoders[0].blocks[1:].tolist()
    assert narrowed(team.encoders[0], later) == later
    assert narrowed(team.encoders[0], later) == [], "lanes become narrower only once"
    results += [team.sum_up(block, [0, 1, 2]) for block in later]
    assert [result.lanes for result in results] == [0, *([2] * (len(later) - 1)), 0], (
        "the summary block has 32-bit lanes"
    )
    assert [team.encoders[1].packed(block).lanes for block in later[:-1]] == [2] * (len(later) - 1), (
        "the refused blocks are encoded with narrow lanes"
    )
    done = team.finish(results)
    team.check(done[0].checksums)
    want = np.mean(gradients, axis=0)
    assert np.abs(done[0].mean[:512] - want[:512]).max() < 1e-6
    assert 1e-4 < np.median(np.abs(done[0].mean[512:] - want[512:])) < 0.05
    encoding = done[0].encoding
    assert encoding is not None
    assert encoding.wire_ratio == pytest.approx((1 + 5 / 4) / 6, rel=0.1)


def test_result_in_narrower_lanes_narrows_waiting_blocks() -> None:
    """The worker that closed the block plans wide lanes itself and gives no hint."""
    team = Team(codec="auto", ratio_control="deliverable")
    team.encode()
    settle(team.encoders[0], team.sum_up(0, [0, 1, 2]), hint=2)
    later = team.encoders[0].blocks[1:].tolist()
    narrowed(team.encoders[0], later)
    result = team.sum_up(1, [0, 1, 2])
    assert result.lanes == 2
    settle(team.encoders[1], result)
    assert narrowed(team.encoders[1], later[1:]) == later[1:]
    assert team.encoders[1].current_lanes == 2


def test_only_blocks_that_never_left_are_narrowed() -> None:
    """After a regroup a worker may have results of waiting blocks; after a restart that is so for all blocks."""
    team = Team(codec="auto", ratio=0.999)
    team.encode()
    encoder = team.encoders[0]
    assert encoder.current_lanes == 1
    before = encoder.packed(1)
    again = team.encoder(0)
    again.begin(1)
    again.encode(1)
    for one, expected in ((encoder, [0, 2]), (again, [])):
        closed = Result(id=BlockId(1, 3), scale=0, lanes=0, k=1, count=1, weight=WEIGHT_UNIT, members=2, values=b"")
        settle(one, closed, hint=3)
        assert one.narrows
        assert [
            block for block in one.narrow(waiting_since_a_regroup(one, team.coding.layout), 1) if block < 3
        ] == expected
        assert one.packed(1) == before
        assert [one.packed(block).lanes for block in range(3)] == [3, 1, 3], (
            "block 1 must keep its lanes, also over the restart"
        )


def waiting_since_a_regroup(encoder: Encoder, layout: BlockLayout) -> list[int]:
    """Return those of blocks 0, 1 and 2 that the protocol gives back, where block 1 has left before."""
    protocol = Watched(job=1, rank=0, layout=layout, slots=64, window=8, rto_s=1.0)
    protocol.begin(1, 0.0, encoder.blocks, encoder.plan.lanes)
    assert len(protocol.contribute_all(encoder.all_packed([1]), now=0.0)) == 1
    protocol.regroup(1)
    assert protocol.contribute_all(encoder.all_packed([0, 2]), now=0.0) == []
    assert sorted(protocol.waiting) == [0, 1, 2]
    return protocol.withdraw(encoder.fresh)


def on_a_link_that_drops(error_max: float | None = None) -> tuple[Encoder, int]:
    """Return a worker of 100 blocks whose link drops to a quarter after 50, and the block that narrowed the following
    ones.
    """
    compress = CompressSection(codec="auto", ratio_control="deliverable", max_encoding_error=error_max)
    coding = JobCoding.of(JOB, compress, 100 * 512)
    ledger = Ledger(LedgerStorage.in_memory(blocks=100, lanes=512), 0, coding.codecs)
    encoder = Encoder(coding, ledger, RateEstimator("deliverable", stability=0.1))
    encoder.begin(1)
    encoder.enter(np.random.default_rng(1).normal(size=100 * 512).astype(np.float32), 1)
    encoder.encode(1)
    now, narrowed_at = 0.0, 0
    for block in range(100):
        now += len(encoder.packed(block).values) / (1e6 if block < 50 else 0.25e6)
        settle(encoder, alone(encoder, block), now=now)
        if found := narrowed(encoder, range(block + 1, 101)):
            assert found == list(range(block + 1, 101)), (
                "later blocks, and the summary block, must be encoded again with the newest lanes"
            )
            narrowed_at = block
    return encoder, narrowed_at


def alone(encoder: Encoder, block: int) -> Result:
    """Return the result of a block that contains worker 0 alone."""
    packed = encoder.packed(block)
    return Result(
        id=BlockId(1, block),
        scale=packed.scale,
        lanes=packed.lanes,
        k=1,
        count=1,
        weight=WEIGHT_UNIT,
        members=1,
        values=packed.values,
    )


@pytest.mark.parametrize(("error_max", "lanes"), [(None, 2), (1e-4, 1)])
def test_slow_link_is_told_to_all_and_narrows_waiting_blocks(error_max: float | None, lanes: int) -> None:
    """The gradient limits how far: 8-bit lanes leave an encoding error above 1e-4 of it, 16-bit lanes less."""
    encoder, narrowed_at = on_a_link_that_drops(error_max)
    assert 50 < narrowed_at < 90
    assert encoder.current_lanes == encoder.packed(99).lanes == lanes
    said = unpack(encoder.packed(100).values, 32)
    assert 0.2 < said[0] / 65536 < 0.3
    assert encoder.ledger.accounts.totals().conserved
    encoder.begin(2)
    assert encoder.current_lanes == 0, "wide lanes stay until the other workers know of the change"


def test_ratio_of_an_iteration_dates_from_the_moment_its_rate_counted() -> None:
    """The first blocks were sent whole, the others at a quarter: c = (s + (D - s) r) / D."""
    encoder, narrowed_at = on_a_link_that_drops()
    delivered, rest = (narrowed_at + 1) / 100, 1 / 4 / (1 - DEAD_ZONE)
    encoding = encoder.follow(BlockResults.of([alone(encoder, block) for block in range(101)]), 0).encoding
    assert encoding is not None
    assert encoding.rate_ratio == pytest.approx(delivered + (1 - delivered) * rest, rel=0.02)


def test_iteration_whose_rate_did_not_count_has_no_ratio() -> None:
    encoder, _ = on_a_link_that_drops()
    encoder.follow(BlockResults.of([alone(encoder, block) for block in range(101)]), 0)
    encoder.begin(2)
    encoder.enter(np.ones(100 * 512, np.float32), 2)
    encoder.encode(2)
    encoding = encoder.follow(BlockResults.of([alone(encoder, block) for block in range(101)]), 0).encoding
    assert encoding is not None
    assert encoding.rate_ratio is None


class Answers(RateEstimator):
    """Keeps the answers that it gets."""

    def __init__(self) -> None:
        super().__init__("deliverable", stability=0.1)
        self.told: list[tuple[float, int, int]] = []

    def answered(self, now: float, *, wire_bytes: int, gradient_bytes: int) -> None:
        self.told.append((now, wire_bytes, gradient_bytes))


def test_answer_with_this_worker_measures_the_block_as_last_sent() -> None:
    """The slot wanted other lanes. A sum without this worker says nothing about its link."""
    team, rate = Team(codec="auto", ratio_control="deliverable"), Answers()
    encoder = team.encoders[0] = Encoder(team.coding, team.encoders[0].ledger, rate)
    team.encode()
    encoder.reencode(1, 1, 20, 2)
    results = [
        Result(BlockId(1, block), 20, 0, 1, 1, WEIGHT_UNIT, bit_of(rank, 0), b"")
        for block, rank in enumerate((0, 0, 1))
    ]
    settle(encoder, *results, now=1.5)
    overhead, block_bytes = FRAME_BYTES + HEADER_BYTES, 4 * team.coding.layout.elements
    assert rate.told == [(1.5, overhead + block_bytes, block_bytes), (1.5, overhead + block_bytes // 4, block_bytes)]
    summary = Result(BlockId(1, encoder.blocks[-1]), 0, 0, 1, 1, WEIGHT_UNIT, 1, b"")
    settle(encoder, summary, now=2.0)
    assert rate.told[2:] == [(2.0, overhead + len(encoder.packed(encoder.blocks[-1]).values), 0)]


def test_unencodable_request_is_named() -> None:
    team = Team(codec="int8")
    team.encode()
    summary = team.encoders[0].blocks[-1]
    for block, scale, lanes in ((0, 3, 0), (0, 3, 3), (0, 41, 2), (0, -1, 2), (summary, 0, 0)):
        with pytest.raises(
            AgentError, match=rf"block {block} must be summed in lanes of code 2 .* got code {lanes} at scale {scale}"
        ):
            team.encoders[0].reencode(block, 1, scale, lanes)


@pytest.mark.parametrize("ratio", [1.0, 1 / 8])
def test_encoding_error_of_a_gradient_is_measured(ratio: float) -> None:
    team = Team(codec="int8", ratio=ratio, elements=4 * 2048)
    team.iterate()
    team.encode()
    encoder = team.encoders[0]
    blocks = encoder.plan.blocks
    pending = encoder.ledger.residual.pending.copy()
    results = [team.sum_up(block, [0, 1, 2]) for block in encoder.blocks]
    encoding = team.finish(results)[0].encoding
    assert encoding is not None
    left = encoder.ledger.residual.pending * 2.0**-40
    assert encoding.error_norm == pytest.approx(np.linalg.norm(left[blocks]))
    assert encoding.residual_norm == pytest.approx(np.linalg.norm(left))
    assert np.array_equal(np.delete(pending, blocks, 0) * 2.0**-40, np.delete(left, blocks, 0))
    wire = len(blocks) * 2048 + 256
    assert (encoding.wire_bytes, encoding.wire_ratio) == (wire, wire / (4 * 4 * 2048))
    assert (encoding.width, encoding.blocks, encoding.ratio) == (8, len(blocks), ratio)
    for one in team.encoders:
        one.begin(3)
    assert encoder.follow(BlockResults.of(results), 0).encoding is None, (
        "an iteration without encoding has no encoding error"
    )


def test_norms_of_long_gradients_are_estimated_from_samples() -> None:
    team = Team(codec="int8", elements=40 * 2048)
    team.iterate()
    encoding = team.iterate()[0].encoding
    assert encoding is not None
    assert encoding.residual_norm == pytest.approx(
        np.linalg.norm(team.encoders[0].ledger.residual.pending.astype(float)) * 2.0**-40, rel=0.05
    )
    assert encoding.error_norm == pytest.approx(encoding.residual_norm, rel=0.05)


@pytest.mark.parametrize(("codec", "small", "large"), [("int32", 1e-11, 100.0), ("int8", 1e-13, 0.0)])
def test_elements_that_underflow_or_are_clipped_are_counted(codec: str, small: float, large: float) -> None:
    """Half the elements are 0, which fit; a quarter of the others is as small as given, and finally
    one is too large.
    """
    team = Team(codec=codec, elements=2048, follows=True)
    some = np.tile([0.1, 0.0, 0.1, 0.0, 0.1, 0.0, small, 0.0], 256)
    team.draw, team.spread = lambda count: some, 1.0
    for _ in range(3):
        encoding = team.iterate()[0].encoding
        assert encoding is not None
        assert encoding.misfits == 0.25
    some[0] += large
    encoding = team.iterate()[0].encoding
    assert encoding is not None
    assert encoding.misfits == 0.25 + (large > 0) / 1024


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e4])
@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_lanes_of_32_bits_follow_gradients_of_any_size(size: float, ratio: float) -> None:
    team = Team(codec="int32", elements=8192, ratio=ratio, follows=True)
    team.draw = lambda count: size * np.random.default_rng(count).normal(size=count)
    for _ in range(3):
        encoding = team.iterate()[0].encoding
    assert encoding is not None
    assert encoding.misfits < 0.001
    assert encoding.error_norm < 1e-4 * size * np.sqrt(8192)


def test_step_too_large_for_residuals_to_shrink_is_detected() -> None:
    """The steps of votes are agreed an iteration earlier. When values become much smaller, the residual grows."""
    team = Team(codec="onebit", error_feedback=False)
    for size, expected in ((1.0, None), (1.0, 0.0), (1e-3, 1.0), (1e-3, 0.0)):
        team.draw = lambda count, size=size: size * np.random.default_rng(count).choice([-1.0, 1.0], count)
        team.spread = 1.0
        before = [encoder.ledger.residual.pending.copy() for encoder in team.encoders]
        gradients = team.encode()
        left = [encoder.ledger.left_over(np.arange(encoder.ledger.blocks), team.iteration) for encoder in team.encoders]
        done = team.finish([team.sum_up(block, range(3)) for block in team.encoders[0].blocks])
        if expected is None:
            continue  # nothing is agreed on yet
        for one, own, over, gradient in zip(done, before, left, gradients, strict=True):
            assert one.encoding is not None
            assert one.encoding.expanding == expected
            assert not own.any(), "nothing is pending before the gradient"
            grows = np.linalg.norm(UNIT * over) > np.linalg.norm(gradient)
            assert grows == bool(expected)
