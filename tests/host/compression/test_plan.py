"""All workers agree without asking: the summary block, and the plan that follows from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kofn_host.compression import summary_block as summary
from kofn_host.compression.codecs.fixed_point import FixedPoint, following
from kofn_host.compression.plan import SLACK, Plan, Planner
from kofn_host.compression.summary_block import FLOOR, GROUPS_MAX, ONE, Magnitudes, SummaryBlock
from kofn_host.errors import ProtocolError
from kofn_host.kernels.lanes import pack, unpack, width_of

MAGNITUDES = st.one_of(st.just(0.0), st.floats(2.0**-40, 2.0**22))


def of(mean: list[float], largest: list[float] | None = None) -> Magnitudes:
    return Magnitudes(mean=np.array(mean), largest=np.array(largest or mean))


def said(mean: list[float] | np.ndarray, wish: float = 1.0) -> SummaryBlock:
    return SummaryBlock(wish=round(wish * ONE), magnitudes=of(list(mean)))


@given(st.lists(MAGNITUDES, min_size=1, max_size=40))
def test_logarithms_are_nearly_those_to_base_2(values: list[float]) -> None:
    found = summary.logarithm(np.array(values))
    above = np.array(values) > 0
    true = np.log2(np.maximum(values, 2.0**-60))
    assert np.all(found[~above] == FLOOR)
    assert np.all(np.abs(found[above] / ONE - true[above]) < 0.087), (
        "the logarithm must be linear between powers of two"
    )
    assert np.allclose(summary.power(found)[above], np.array(values)[above], rtol=2 / ONE)


@pytest.mark.parametrize("blocks", [1, 5, GROUPS_MAX, GROUPS_MAX + 1, 5000])
@pytest.mark.parametrize("workers", [1, 64])
def test_summary_carries_the_mean_wish_and_the_mean_magnitudes(blocks: int, workers: int) -> None:
    random = np.random.default_rng(blocks)
    wishes = random.uniform(0.1, 1, workers)
    mean = np.exp2(random.uniform(-30, 20, (workers, blocks)))
    own = [summary.lanes(wish, Magnitudes(mean=m, largest=4 * m)) for wish, m in zip(wishes, mean, strict=True)]
    assert own[0].size == summary.words(blocks) * 64 <= 2048
    sent = sum(unpack(pack(lanes, 32), 32).astype(np.int64) for lanes in own)
    assert np.abs(sent).max() < 2**31, "the sums of 64 workers must fit"
    read = summary.read(sent.astype(np.int32), workers, blocks)
    assert read.wish / ONE == pytest.approx(wishes.mean(), abs=2 / ONE)
    share = -(-blocks // GROUPS_MAX)
    groups = [mean[:, first : first + share] for first in range(0, blocks, share)]
    want = np.repeat([np.log2(group.mean(axis=1)).mean() for group in groups], share)[:blocks]
    most = np.repeat([np.log2(4 * group.max(axis=1)).mean() for group in groups], share)[:blocks]
    assert np.abs(np.log2(read.magnitudes.mean) - want).max() < 0.09
    assert np.abs(np.log2(read.magnitudes.largest) - most).max() < 0.09


def test_summary_is_read_the_same_for_either_sign_of_the_logarithms() -> None:
    lanes = summary.lanes(1.0, of([2.0**-41, 1.0, 2.0**20]))
    assert summary.read(lanes * 3, 3, 3).magnitudes.mean.tolist() == [2.0**-41, 1.0, 2.0**20]


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data(), st.integers(1, 40), st.integers(1, 9), st.sampled_from([1.0, 0.5, 0.3, 1 / 8, 1 / 13, 1 / 64, 1e-3]))
def test_blocks_rest_no_longer_than_the_interval_and_the_ratio_is_kept(data, blocks, every, ratio) -> None:
    planner = Planner(blocks=blocks, widths=(4,), ratio=ratio, every=every)
    plan, last = planner.first(), np.zeros(blocks, np.int64)
    share, least = blocks * round(ratio * ONE) / ONE * 8, -(-blocks // every)
    owed = 0.0
    for iteration in range(1, 3 * every + 3):
        sent = plan.blocks
        assert sent.tolist() == sorted(set(sent.tolist()))
        count = int(share + owed)
        owed = share + owed - count if least <= count < blocks else 0
        assert len(sent) == min(blocks, max(count, least)), (
            "no iteration sends more blocks, although all are due in time"
        )
        assert np.array_equal(plan.gap, iteration - last), (
            "each block's gap is the number of iterations since it was sent"
        )
        assert plan.gap.max() <= every
        last[sent] = iteration
        plan = planner.after(plan, said(data.draw(st.lists(MAGNITUDES, min_size=blocks, max_size=blocks))))


@settings(max_examples=40)
@given(st.data(), st.integers(1, 30), st.integers(1, 6))
@pytest.mark.slow
def test_no_block_rests_longer_when_the_ratio_changes(data: st.DataObject, blocks: int, every: int) -> None:
    planner = Planner(blocks=blocks, widths=(32, 16, 8, 4), every=every, adaptive=True)
    plan, rests = planner.first(), np.zeros(blocks, np.int64)
    for _ in range(12):
        rests += 1
        rests[plan.blocks] = 0
        assert rests.max() < every or every == 1
        mean = data.draw(st.lists(MAGNITUDES, min_size=blocks, max_size=blocks))
        plan = planner.after(plan, said(mean, data.draw(st.floats(0, 1.2))))


def test_largest_blocks_and_longest_resting_blocks_are_sent() -> None:
    planner = Planner(blocks=6, widths=(8,), ratio=2 / 24, every=4)
    first = planner.first()
    assert first.blocks.tolist() == [0, 1], "without magnitudes the first blocks are sent"
    second = planner.after(first, said([9, 9, 1, 3, 2, 3]))
    assert second.blocks.tolist() == [0, 1], "the other blocks need not be sent yet"
    third = planner.after(second, said([9, 9, 1, 3, 2, 3]))
    assert third.blocks.tolist() == [3, 5], "blocks 3 and 5 are due, and have most of the magnitude among those"
    fourth = planner.after(third, said([9, 9, 1, 3, 2, 3]))
    assert fourth.blocks.tolist() == [2, 4]
    assert fourth.gap.tolist() == [2, 2, 4, 1, 4, 1]
    tie = planner.after(fourth, said([1, 1, 1, 1, 1, 1]))
    assert tie.blocks.tolist() == [3, 5], "one more iteration weighs more after one iteration than after two"


def test_ratio_is_kept_over_iterations_where_it_gives_no_whole_blocks() -> None:
    planner = Planner(blocks=19, widths=(8,), ratio=0.05, every=20)
    plan, sent = planner.first(), []
    for _ in range(100):
        sent.append(len(plan.blocks))
        restored = Plan.from_arrays(plan.to_arrays())
        assert restored.owed == plan.owed
        plan = planner.after(restored, said(np.ones(19)))
    assert sum(sent) == int(100 * 19 * 4 * round(0.05 * ONE) / ONE)
    assert set(sent) == {3, 4}


def test_summary_block_counts_towards_the_ratio() -> None:
    """It takes a quarter of a block in 8-bit lanes."""
    planner = Planner(blocks=19, widths=(8,), ratio=0.1, every=20, summary_bits=2 * ONE)
    plan, sent = planner.first(), []
    for _ in range(80):
        sent.append(len(plan.blocks))
        plan = planner.after(plan, said(np.ones(19)))
    assert sum(sent) == int(80 * (19 * 4 * round(0.1 * ONE) / ONE - 0.25))
    assert len(Planner(blocks=19, widths=(8,), ratio=0.25, summary_bits=2 * ONE).first().blocks) == 19


def test_resting_block_is_expected_to_grow() -> None:
    planner = Planner(blocks=3, widths=(8,), ratio=1 / 4 * 2 / 3, every=8)
    first = planner.first()
    second = planner.after(first, said([1.0, 1.0, 1.0]))
    assert second.expected is not None
    assert second.expected.mean.tolist() == [1.0, 1.0, np.sqrt(2)]
    assert 2 in second.blocks


@pytest.mark.parametrize(
    ("wish", "width", "blocks"),
    [
        (1.0, 32, 16),
        (0.98, 32, 16),
        (0.9, 16, 16),
        (0.5, 16, 16),
        (0.3, 8, 16),
        (0.2, 4, 16),
        (0.125, 4, 16),
        (0.0625, 4, 8),
    ],
)
def test_mean_wish_determines_lanes_and_blocks(wish: float, width: int, blocks: int) -> None:
    planner = Planner(blocks=16, widths=(32, 16, 8, 4), adaptive=True)
    first = planner.first()
    assert (width_of(first.lanes), len(first.blocks)) == (32, 16)
    plan = planner.after(first, said([1.0] * 16, wish))
    assert (width_of(plan.lanes), len(plan.blocks)) == (width, blocks)
    narrow = Planner(blocks=16, widths=(32, 16, 8), adaptive=True)
    plan = narrow.after(narrow.first(), said([1.0] * 16, wish))
    assert (width_of(plan.lanes), len(plan.blocks)) == (max(8, width), min(16, int(64 * wish * (1 + SLACK))))


def test_wishes_do_not_count_where_the_ratio_is_given() -> None:
    planner = Planner(blocks=4, widths=(8,), ratio=0.125)
    plan = planner.after(planner.first(), said([1.0] * 4, wish=1.0))
    assert (plan.ratio, len(plan.blocks)) == (ONE // 8, 2)


def test_without_a_summary_scales_follow_the_sums() -> None:
    """Scales become coarser at once. They become finer by one bit an iteration, since a block may be 0 for a while."""
    codec, planner = FixedPoint(workers=4), Planner(blocks=4, widths=(32,), follows=True)
    plan, scales = planner.first(), []
    assert plan.expected is None
    for sums in ([1, 2**-20, 0, 4], [1, 2**-20, 0, 4], [2, 2**-20, 8, 2**-9], [2, 2**-20, 0, 0], [0, 0, 0, 0]):
        plan = planner.after_sums(plan, np.array(sums, np.float64))
        assert plan.blocks.tolist() == [0, 1, 2, 3]
        assert plan.expected is not None
        scales.append(following(codec, plan.expected.largest).tolist())
    assert scales == [[20] * 4, [20] * 4, [19] * 4, [20] * 4, [21] * 4]


def test_scales_follow_the_expected_magnitudes() -> None:
    codec = FixedPoint(workers=4, width=8)
    planner = Planner(blocks=2, widths=(8,))
    plan = planner.after(planner.first(), said([2.0**-3, 2.0**-9]))
    assert plan.expected is not None
    assert np.array_equal(plan.expected.largest, [2.0**-3, 2.0**-9])
    scale = codec.scale(plan.expected.mean, plan.expected.largest)
    assert scale[1] - scale[0] == 6


def test_plan_that_follows_the_sums_continues_from_its_arrays() -> None:
    planner = Planner(blocks=3, widths=(32,), follows=True)
    plan = planner.after_sums(planner.first(), np.array([1.0, 0.0, 8.0]))
    again = Plan.from_arrays(plan.to_arrays())
    sums = np.array([0.25, 3.0, 0.0])
    ends = [planner.after_sums(one, sums).to_arrays() for one in (plan, again)]
    assert all(np.array_equal(array, ends[1][name]) for name, array in ends[0].items())


@pytest.mark.parametrize("steps", [0, 5])
def test_plan_continues_from_its_arrays(steps: int) -> None:
    random = np.random.default_rng(steps)
    planner = Planner(blocks=7, widths=(8, 4), ratio=1 / 20, every=6, adaptive=True)
    plan = planner.first()
    for _ in range(steps):
        plan = planner.after(plan, said(random.uniform(1, 9, 7), 0.05))
    again = Plan.from_arrays({name: array.copy() for name, array in plan.to_arrays().items()})
    for heard in [said(random.uniform(1, 9, 7), 0.06) for _ in range(8)]:
        plan, again = planner.after(plan, heard), planner.after(again, heard)
        for name, array in plan.to_arrays().items():
            assert np.array_equal(array, again.to_arrays()[name]), name
            assert array.shape == planner.first().to_arrays()[name].shape
    with pytest.raises(ProtocolError, match=r"has no plan and no expected"):
        Plan.from_arrays({})
