"""Switch sums of encoded values decode to the intended sums at every width; native code equals NumPy bit for bit."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.codec import CODECS, main, measure
from kofn_common.config.compress import CompressSection, Rounding, limit_of
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import WIDTHS
from kofn_host.compression.aggregate import Sums
from kofn_host.compression.codec import FRACTION_BITS, Codec, average_packed, check, encode_packed, packs, statistics
from kofn_host.compression.codecs.fixed_point import TAIL, FixedPoint, beginning, following
from kofn_host.compression.codecs.onebit import OneBit
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.ledger_native import checksums, factors_of
from kofn_host.compression.plan import Planner
from kofn_host.compression.registry import check_codec, load_codecs
from kofn_host.errors import CodecError, GradientError, LedgerError
from kofn_host.kernels.kernel import kernel
from kofn_host.kernels.lanes import VOTES, code_of, pack, unpack, unpack_sums, width_of
from kofn_host.protocol.block_layout import BlockLayout
from kofn_host.protocol.results import RESULT, BlockResults, address_of
from tests.host.compression import numpy_kernel
from tests.host.compression.numpy_kernel import NUMPY
from tests.host.lab import packed_sums, sums_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "codecs"

LANES = 8
VALUES = st.integers(-(2**62), 2**62) | st.integers(-(2**42), 2**42) | st.integers(-9, 9)
BLOCKS = arrays(np.int64, st.tuples(st.integers(1, 3), st.just(LANES)), elements=VALUES)
WORKERS = st.integers(1, 64)

STEPS = [width for width in WIDTHS if width != VOTES]
"""Widths of lanes that are no votes."""


@st.composite
def codecs(draw):
    """Draw any codec whose lanes have room for its number of workers."""
    workers = draw(WORKERS)
    fixed = [
        FixedPoint(workers=workers, width=width, rounding=rounding)
        for width in STEPS
        if limit_of(width, workers)
        for rounding in ("nearest", "stochastic")
    ]
    return draw(st.sampled_from([*fixed, OneBit()])), workers


def addends(data, workers):
    """Draw each worker's blocks: up to three different ones, repeated for further workers."""
    shape = data.draw(BLOCKS).shape
    own = [data.draw(arrays(np.int64, shape, elements=VALUES)) for _ in range(min(workers, 3))]
    return [own[worker % len(own)] for worker in range(workers)]


def from_wire(codec, packed, scale, count):
    """Return the mean of consecutive blocks' sums, halved, and its checksums."""
    size = len(packed) // len(scale)
    lanes = LANES if codec.width == VOTES else size * 8 // codec.width
    blocks, mean = (
        [packed[at : at + size] for at in range(0, len(packed), size)],
        np.empty(len(scale) * lanes, np.float32),
    )
    halves, weights = np.full((len(scale), 1), 0.5), factors_of(lanes)
    sums = average_packed(codec, sums_of(blocks), scale, count, halves, weights=weights, mean=mean)
    return mean.reshape(-1, lanes), sums


@pytest.mark.slow
@given(codecs(), st.data())
def test_sum_fits_its_lanes_and_decodes_to_the_sum_of_its_addends(codec_and_workers, data):
    codec, workers = codec_and_workers
    values = addends(data, workers)
    blocks = len(values[0])
    scale = data.draw(arrays(np.int64, (blocks, 1), elements=st.integers(0, FRACTION_BITS)))
    lanes = [codec.encode(block, scale) for block in values]
    total = np.asarray(np.sum(lanes, axis=0, dtype=np.int64))
    least, most = (-(2 ** (codec.width - 1)), 2 ** (codec.width - 1) - 1) if codec.signed else (0, workers)
    assert least <= total.min() and total.max() <= most
    packed = packed_sums(total.astype(np.int32), codec.width, workers.bit_length())
    assert np.array_equal(unpack_sums(packed, codec.width, LANES, blocks, signed=codec.signed), total)
    counts = [np.ones((blocks, 1), np.int64)] * workers
    decoded = [codec.decode(lane, scale, count) for lane, count in zip(lanes, counts, strict=True)]
    whole = codec.decode(total.astype(np.int32), scale, sum(counts))
    halved, sums = from_wire(codec, packed, scale, sum(counts))
    assert np.array_equal(halved, (whole * 0.5).astype(np.float32)) and np.array_equal(sums, checksums(whole))
    assert whole.dtype == np.int64
    assert np.array_equal(whole, np.sum(decoded, axis=0))


@pytest.mark.parametrize("width", STEPS)
def test_limit_uses_all_room_for_the_given_workers(width):
    extremes = np.array([[-(2**62), 2**62]])
    for workers in range(1, 65):
        if limit_of(width, workers) == 0:
            assert 2 ** (width - 1) - 1 < workers
            with pytest.raises(
                CodecError, match=rf"lanes of {width} bits are too narrow for a sum of {workers} workers"
            ):
                FixedPoint(workers=workers, width=width)
            continue
        codec = FixedPoint(workers=workers, width=width)
        total = workers * codec.encode(extremes, FRACTION_BITS).astype(np.int64)
        assert -(2 ** (width - 1)) <= total[0, 0] == -total[0, 1]
        assert 2 ** (width - 1) - 1 - workers < total[0, 1] <= 2 ** (width - 1) - 1


@given(st.sampled_from(WIDTHS), st.booleans(), st.data())
def test_lanes_come_back_from_the_wire(width, signed, data):
    least, most = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed or width == 32 else (0, 2**width - 1)
    lanes = data.draw(arrays(np.int32, 2 * LANES, elements=st.integers(least, most)))
    packed = pack(lanes, width)
    number = sum((int(lane) & 2**width - 1) << width * (2 * LANES - 1 - at) for at, lane in enumerate(lanes))
    assert packed == number.to_bytes(2 * LANES * width // 8), "the first lane must be in the high bits"
    assert np.array_equal(unpack(packed, width, signed=signed), lanes)
    assert np.array_equal(unpack(memoryview(packed), width, signed=signed), lanes)
    assert width_of(code_of(width)) == width


def both(step):
    """Return the results of NumPy and of native code for one step."""
    return [step(one) for one in (NUMPY, kernel())]


def assert_same(step):
    ours, theirs = both(step)
    assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


@st.composite
def chances(draw):
    """Draw a generator and block sizes below and above the length of a vector register and of a chunk."""
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.sampled_from([2, 8, 66, 256, 2050]))


@given(chances(), st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1))
@pytest.mark.slow
def test_native_code_rounds_and_averages_as_numpy(chance, limit, seed):
    random, size = chance
    values = random.integers(-(2**62), 2**62, (7, size)) >> random.integers(0, 62, (7, size))
    shift = random.choice(random.integers(0, 41, 2), (7, 1))
    factor, votes, alike = np.exp(random.uniform(-30, 0, (7, 1))), random.integers(1, 256, (7, 1)), shift * 0 + 9
    for by in (shift, alike, int(shift[0, 0])):
        with mock.patch.object(numpy_kernel, "PIECE", 2 * size):
            assert_same(lambda one, by=by: one.round(values, by, limit))
            assert_same(lambda one, by=by: one.round_by_chance(values, by, limit, seed))
        assert_same(lambda one, by=by: one.spread(values.astype(np.int32), by))
        for count in (votes, int(votes[0, 0])):
            assert_same(lambda one, by=by, count=count: one.spread(values.astype(np.int16).astype(np.int32), by, count))
    assert_same(lambda one: one.votes(values[:, ::2]))
    assert_same(lambda one: one.round(values[:, ::2], shift, limit))
    assert_same(lambda one: one.round(values[0], 40, limit))
    assert_same(lambda one: one.scaled(values, factor))
    assert_same(lambda one: one.scaled(values, 0.3))
    assert_same(lambda one: np.stack(one.magnitudes(values)))


@given(st.sampled_from(STEPS), chances(), st.none() | st.integers(0, 2**32 - 1), st.booleans())
def test_encode_equals_rounding_and_packing(width, chance, seed, alike):
    random, size = chance
    values = random.integers(-(2**62), 2**62, (20, size)) >> random.integers(0, 62, (20, size))
    shift, limit = random.integers(0, 1 if alike else 41, (20, 1)), 2 ** (width - 1) - 1
    for one in (NUMPY, kernel()):
        lanes = one.round(values, shift, limit) if seed is None else one.round_by_chance(values, shift, limit, seed)
        assert one.encode(values, shift, limit, seed, width) == one.pack(lanes, width)


class OwnPoint(FixedPoint):
    """A user's codec, which native code does not know."""


class OwnBit(OneBit):
    """A user's votes, which native code does not know."""


@pytest.mark.parametrize("average", ["gradients", "contributors"])
@pytest.mark.parametrize("kinds", [(FixedPoint, OwnPoint), (OneBit, OwnBit)], ids=["steps", "votes"])
@given(seed=st.integers(0, 2**32 - 1), words=st.sampled_from([1, 2, 4]))
def test_native_code_averages_as_the_codecs_do(kinds, average, seed, words):
    """The sums have any lanes and scales; one block is not full."""
    random, blocks = np.random.default_rng(seed), 5
    widths, planes = (STEPS, 1) if kinds[0] is FixedPoint else ([VOTES], int(random.integers(1, 8)))
    layout = BlockLayout(blocks=blocks, words=words, widest=widths[0], planes=planes)
    sizes = {code_of(width): width * planes for width in widths}
    codes, found = random.choice([*sizes], blocks), []
    table = np.zeros(blocks, RESULT)
    values = [random.bytes(layout.elements * sizes[code] // 8) for code in codes.tolist()]
    table["values"], table["size"] = [*map(address_of, values)], [*map(len, values)]
    table["scale"], table["lanes"] = random.integers(0, FRACTION_BITS, blocks, endpoint=True), codes
    table["count"], table["weight"] = random.integers(1, 9, blocks), random.integers(1, 2**20, blocks)
    table["members"][:, :4] = random.integers(0, 2**63, (blocks, 4))
    for kind in kinds:
        made: dict[int, Codec] = {
            code: kind() if layout.widest == VOTES else kind(workers=3, width=size) for code, size in sizes.items()
        }
        coding = JobCoding(
            elements=blocks * layout.elements - 3,
            places=(0,),
            parts=1,
            summarised=False,
            notes=False,
            layout=layout,
            codecs=made,
            planner=Planner(blocks=blocks, widths=(layout.widest,)),
        )
        plan = replace(coding.planner.first(), gap=np.arange(1, blocks + 1))
        assert (coding.most is None) == (kind is kinds[1])
        found.append(sums := Sums(coding, plan, average))
        order = np.random.default_rng(seed).permutation(blocks)
        for some in (order[:2], order[2:]):
            sums.add(BlockResults(1, some, table[some], values))
        assert sums.closed.all()
    native, own = found
    assert native.mean.tobytes() == own.mean.tobytes() and native.mean.size == blocks * layout.elements - 3
    assert np.array_equal(native.checksums, own.checksums)


@pytest.mark.parametrize("wrong", [{"lanes": 2}, {"lanes": 7}, {"scale": 41}, {"scale": -1}, {"size": 252}], ids=str)
def test_impossible_sum_is_refused(wrong):
    coding = JobCoding.of(JobSection(words=1), CompressSection(), 128)
    sums, values = Sums(coding, coding.planner.first(), "gradients"), bytes(256)
    table = np.zeros(2, RESULT)
    table["values"], table["size"], table["weight"], table["count"] = address_of(values), 256, 256, 1
    for name, number in wrong.items():
        table[name][1] = number
    with pytest.raises(CodecError, match=r"block 1 must be summed in 64 lanes of code 0 at a scale of 0 to 40, got"):
        sums.add(BlockResults(1, np.arange(2), table, values))
    assert sums.closed.tolist() == [True, False]


@given(chances())
def test_lanes_are_gathered_from_any_address(chance):
    random, size = chance
    lanes = random.integers(-(2**31), 2**31, (5, size), dtype=np.int32)
    packed = [pack(block, 32) for block in lanes]
    places = np.array([*map(address_of, packed)], np.uint64)
    for one in (NUMPY, kernel()):
        assert np.array_equal(one.gathered(places, size), lanes)


@given(chances(), st.floats(0, 1), st.floats(0, 1))
def test_native_code_steps_as_numpy(chance, rate, momentum):
    random, size = chance
    gradient, velocity, parameters = random.normal(size=(3, size)).astype(np.float32)

    def step(one):
        after = velocity.copy(), parameters.copy()
        one.step(gradient, *after, rate=rate, momentum=momentum)
        return np.stack(after)

    assert_same(step)


def test_blocks_of_another_size_are_refused():
    codec, one = FixedPoint(workers=4), np.ones((2, 1), np.int64)
    blocks, factors, mean = sums_of([bytes(32), bytes(28)]), factors_of(8), np.zeros(16, np.float32)
    with pytest.raises(CodecError, match=r"all 2 blocks must have one size, got \[28, 32\] bytes"):
        average_packed(codec, blocks, one, one, one / 2, weights=factors, mean=mean)
    for width, size, more in ((32, 4, ""), (VOTES, 3, " or a multiple")):
        needed = f"2 blocks in lanes of {width} bits must be {2 * 16 * width // 8} bytes{more}, got {2 * size}"
        with pytest.raises(CodecError, match=needed):
            unpack_sums(bytes(2 * size), width, 16, 2)


@given(chances())
def test_votes_encoded_in_one_pass_equal_votes(chance):
    random, size = chance[0], chance[1] // 2 * 8
    values = random.integers(-3, 4, (20, size))
    for one in (NUMPY, kernel()):
        assert one.encode_votes(values) == one.pack(one.votes(values), 1)


@pytest.mark.parametrize("shift", [1, 3, 16, 17, 40])
def test_probability_of_rounding_up_is_the_remainder(shift):
    """The share of 2**16 draws has a standard error of 0.002."""
    rest = np.array([[0], [1], [2], [3], [4]]) << shift >> 2
    up = kernel().round_by_chance(np.broadcast_to(rest, (5, 1 << 16)), shift, 9, 7).mean(axis=1)
    assert np.abs(up - rest[:, 0] / 2.0**shift).max() < 0.008
    assert up[0] == 0.0 and up[4] == 1.0


@given(st.sampled_from(WIDTHS), st.booleans(), chances())
def test_native_code_packs_as_numpy(width, signed, chance):
    random, size = chance[0], chance[1] // 2 * 8
    lanes = random.integers(-(2**31), 2**31, size, dtype=np.int32)
    packed, same = both(lambda one: one.pack(lanes, width))
    assert packed == same
    assert_same(lambda one: one.unpack(packed, width, signed=signed))


@given(arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)))
@pytest.mark.slow
def test_native_code_refuses_as_numpy(gradient):
    bad, same = both(lambda one: one.first_bad(gradient, 2.0**20))
    assert bad == same
    if bad < 0:
        assert np.all(np.abs(gradient) <= 2.0**20)
    else:
        assert not abs(gradient[bad]) <= 2.0**20
        assert np.all(np.abs(gradient[:bad]) <= 2.0**20)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**21])
def test_bad_gradients_are_refused(bad):
    gradient = np.full(10_000, 2.0**20, np.float32)
    gradient[[7_000, 9_999]] = bad
    with pytest.raises(GradientError, match=r"element 7000 must be finite and at most 2\*\*20"):
        check(gradient)


@pytest.mark.parametrize(("variable", "value"), [("CC", "/nowhere/cc"), ("CC", "false"), ("KOFN_CACHE", "/dev/null/x")])
def test_missing_compiler_is_named(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    kernel.cache_clear()
    try:
        with pytest.raises(LedgerError, match="codecs are native code: "):
            FixedPoint(workers=4)
    finally:
        kernel.cache_clear()


@pytest.mark.slow
@given(codecs(), BLOCKS)
def test_scale_clips_little_and_wastes_little(codec_and_workers, values):
    """At most values beyond TAIL * sqrt(limit) times the mean are clipped."""
    codec, _ = codec_and_workers
    mean, largest = statistics(values)
    scale = codec.scale(mean, largest)
    assert scale.dtype == np.int64 and scale.shape == mean.shape
    assert scale.min() >= 0 and scale.max() <= FRACTION_BITS
    if codec.width < 32 and codec.signed:
        reach = codec.limit * 2.0**-scale
        needed = np.minimum(largest, TAIL * np.sqrt(codec.limit) * mean * np.sqrt(0.5))
        assert np.all((reach >= needed * (1 - 1e-12)) | (scale == 0))
        assert np.all((reach <= 2 * needed + 2.0**-39) | (reach <= 2 * np.maximum(needed, codec.limit * 2.0**-40)))


def test_no_blocks_have_no_statistics():
    none, scale = np.zeros((0, LANES), np.int64), np.zeros((0, 1), np.int64)
    for codec in (FixedPoint(workers=2, width=8), OneBit()):
        assert codec.decode(codec.encode(none, scale), scale, scale).shape == (0, LANES)
        assert encode_packed(codec, none, scale) == b""
        assert codec.scale(*statistics(none)).shape == (0,)


@given(BLOCKS)
def test_statistics_are_exact(values):
    mean, largest = statistics(values)
    for row, found, most in zip(values, mean, largest, strict=True):
        sizes = [abs(int(value)) for value in row]
        assert found == float(sum(sizes)) / LANES * 2.0**-40
        assert most == float(max(sizes)) * 2.0**-40


@pytest.mark.parametrize("width", STEPS)
def test_nearest_leaves_half_a_step_and_stochastic_less_than_one(width):
    values = np.random.default_rng(1).integers(-(2**39), 2**39, (16, 512))
    bounds: dict[Rounding, float] = {"nearest": 0.5, "stochastic": 1.0}
    for rounding, bound in bounds.items():
        codec = FixedPoint(workers=2, width=width, rounding=rounding)
        scale = codec.scale(*statistics(values))[:, None]
        left = np.abs(values - codec.decode(codec.encode(values, scale), scale, 1)) / 2.0 ** (40 - scale)
        inside = np.abs(values) < codec.limit << 40 - scale
        assert inside.mean() > 0.7
        assert left[inside].max() <= bound


def test_stochastic_rounding_is_unbiased_and_draws_new_numbers_each_time():
    """The mean of 400 draws has a standard error of 0.025 of a step; rounding to nearest would be off by up to half a
    step.
    """
    values = np.random.default_rng(2).integers(-(2**41), 2**41, (4, 256))
    codec = FixedPoint(workers=4, width=8, rounding="stochastic")
    draws = np.stack([codec.encode(values, 0) for _ in range(400)])
    off = draws.mean(axis=0) - values / 2.0**40
    assert 0.01 < np.sqrt((off**2).mean()) < 0.03
    assert abs(off.mean()) < 0.003
    again = FixedPoint(workers=4, width=8, rounding="stochastic")
    assert np.array_equal(draws, [again.encode(values, 0) for _ in range(400)]), (
        "two runs with one seed must be the same"
    )
    other = FixedPoint(workers=4, width=8, rounding="stochastic").encode(values + 1, 0)
    assert np.mean(other != draws[0]) > 0.1, "two workers must differ"


def test_votes_are_a_majority_times_the_mean_magnitude():
    codec = OneBit()
    values = [np.array([[3, -3, 3, 0]]) << 38, np.array([[5, -5, -5, 0]]) << 38, np.array([[1, -1, -1, -1]]) << 38]
    scale = codec.scale(*statistics(values[0]))[:, None]
    assert scale.tolist() == [[0]], "1.6 * 0.56 is the nearest to 1"
    votes = np.array([codec.encode(value, scale) for value in values]).sum(axis=0, dtype=np.int32)
    assert votes.tolist() == [[3, 0, 1, 2]]
    assert (codec.decode(votes, scale, 3) >> 40).tolist() == [[3, -3, -1, 1]]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda: FixedPoint(workers=8, width=4),
            "lanes of 4 bits are too narrow for a sum of 8 workers: use 32, 16, 8 bits",
        ),
        (lambda: FixedPoint(workers=2, width=12), "a lane's width must be one of 32, 16, 8, 4, 1 bits, got 12"),
        (
            lambda: FixedPoint(workers=2, rounding="up"),  # type: ignore[arg-type]
            'rounding must be "nearest" or "stochastic", got "up"',
        ),
        (lambda: pack(np.zeros(8, np.int32), 64), "a lane's width must be one of 32, 16, 8, 4, 1 bits, got 64"),
        (lambda: pack(np.zeros(3, np.int32), 4), "lanes of 4 bits must fill whole bytes, got 3 of them"),
        (lambda: unpack(bytes(3), 16), "values must be a whole number of lanes of 16 bits, got 3 bytes"),
        (lambda: unpack(bytes(3), 0), "a lane's width must be one of 32, 16, 8, 4, 1 bits, got 0"),
        (lambda: width_of(5), "the code of lanes must be 0 to 4, got 5"),
        (
            lambda: OneBit().decode(np.zeros((1, 8), np.int32), 41, 1),
            "scales must be 0 to 40, got 41 to 41",
        ),
        (
            lambda: FixedPoint(workers=3).encode(np.zeros((2, 8), np.int64), np.array([[-1], [4]])),
            "scales must be 0 to 40, got -1 to 4",
        ),
        (lambda: load_codecs("int4", workers=64), "lanes of 4 bits are too narrow"),
        (lambda: load_codecs("int64", workers=4), "codec must be int32, .* or module:Name, got 'int64'"),
        (lambda: load_codecs("tests.host.none:x", workers=4), "cannot be loaded: ModuleNotFoundError: No module named"),
        (lambda: load_codecs("tests.host.compression.test_codecs:x", workers=4), "cannot be loaded: AttributeError"),
        (lambda: load_codecs("tests.host.compression.test_codecs:LANES", workers=4), "LANES' must be a callable"),
        (
            lambda: load_codecs("tests.host.compression.test_codecs:crowded", workers=4),
            r"crowded.*no head-room.*-32 to 32 from each of 4 workers",
        ),
    ],
)
def test_missing_and_unsuitable_codecs_are_named(call, reason):
    with pytest.raises((CodecError, ConfigError), match=reason):
        call()


def crowded(workers, rounding):
    """Return a codec that accepts one worker more than its lanes have room for."""
    codec = FixedPoint(workers=workers, width=8, rounding=rounding)
    codec.limit = 127 // workers + 1
    return codec


def family(workers):
    """Return two codecs, or none for many workers."""
    return [FixedPoint(workers=workers, width=width) for width in (8, 16)] if workers < 9 else []


def test_one_name_may_give_codecs_of_several_widths():
    assert [*load_codecs(f"{__name__}:family", workers=4)] == [16, 8]
    with pytest.raises(CodecError, match="family': the callable must return one codec or more, got none"):
        load_codecs(f"{__name__}:family", workers=9)


@pytest.mark.parametrize(("job", "reason"), [
    (JobSection(workers=4, racks=2), "job.racks must be 1 if all lanes have one bit, got 2"),
    (JobSection(workers=4, words=5), "job.words must be at most 4 if all lanes have one bit, got 5"),
])  # fmt: skip
def test_votes_need_one_switch_and_few_words(job, reason):
    with pytest.raises(CodecError, match=reason):
        JobCoding.of(job, CompressSection(codec="onebit"), 1000)


def test_codecs_are_loaded_by_name():
    found = load_codecs("auto", workers=8)
    assert {width: codec.width for width, codec in found.items()} == {32: 32, 16: 16, 8: 8}
    (int32,) = load_codecs("int32", workers=4, gradient_range=16.0).values()
    assert int32.scale(np.ones(2), np.ones(2)).tolist() == [24, 24]
    assert packs(int32) and following(int32, np.zeros(2)).tolist() == [24, 24], "zeros say nothing about the scale"
    assert following(int32, np.array([0.25, 1.0, 0.0, 2.0**-30])).tolist() == [22] * 4
    assert following(int32, np.array([2.0**-30, 0.0])).tolist() == [40] * 2
    for largest, scale in ((0.0, 24), (1.0, 24), (2.0**-14, 24), (2.0**-15, 32), (2.0**-30, 40), (2.0**6, 16)):
        assert beginning(int32, np.array([0.0, largest])).tolist() == [scale, scale], largest
    for largest in 2.0 ** np.arange(-40, 21):
        assert largest * 2.0 ** beginning(int32, np.array([largest]))[0] <= int32.limit, "the largest value must fit"
    for name, width in (("int16", 16), ("int8", 8), ("int4", 4), ("onebit", VOTES)):
        (codec,) = load_codecs(name, workers=4, rounding="stochastic").values()
        assert codec.width == width
        check_codec(codec, 4)


def test_example_codec_has_at_most_thirty_lines(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    assert len((EXAMPLES / "narrow.py").read_text().splitlines()) <= 30
    for workers in (1, 4, 64):
        (codec,) = load_codecs("narrow:Narrow", workers=workers).values()
        values = np.random.default_rng(3).laplace(0, 2.0**38, (4, 512)).astype(np.int64)
        scale = codec.scale(*statistics(values))[:, None]
        packed = encode_packed(codec, values, scale)
        left = values - 2.0 * from_wire(codec, packed, scale, np.ones_like(scale))[0]
        assert np.linalg.norm(left) < np.linalg.norm(values)


def test_bench_times_every_codec():
    rows = measure((*CODECS, ("auto", "nearest")), elements=8192, workers=4, repetitions=1)
    assert len(rows) == len(CODECS) + 4
    assert {row["bits"] for row in rows} == set(WIDTHS)
    assert all(row["of_copy"] > 0 and row["whole_ms"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--codec gone:Codec", "error: codec 'gone:Codec' cannot be loaded: ModuleNotFoundError"),
        ("--workers 300", "error: argument --workers: must be a whole number, 1 to 64, got '300'"),
        ("--workers 8", "error: lanes of 4 bits are too narrow for a sum of 8 workers: use 32, 16, 8 bits"),
        ("--elements 1000", "error: argument --elements must be a multiple of 2048, got 1000"),
        ("--repetitions 0", "error: argument --repetitions: must be a whole number, 1 or more, got '0'"),
        ("--repetitions few", "error: argument --repetitions: must be a whole number, 1 or more, got 'few'"),
    ],
)
def test_bench_names_invalid_options_before_it_measures(monkeypatch, capsys, given, words):
    monkeypatch.setattr("sys.argv", ["codec.py", *given.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert "nearest" not in said


class Wrong(FixedPoint):
    """A codec that breaks one requirement."""

    def __init__(self, fault):
        super().__init__(workers=4, width=8)
        self._fault, self._asked = fault, 0

    def scale(self, mean, largest):
        self._asked += 1
        scale = super().scale(mean, largest)
        faults = {
            "floats": scale.astype(float),
            "shape": scale[:1],
            "range": scale + 40,
            "chance": scale + self._asked % 2,
        }
        return faults.get(self._fault, scale)

    def encode(self, values, scale):
        lanes = super().encode(values, scale)
        if self._fault == "changes":
            values += 1
        return lanes.astype(np.int8) if self._fault == "type" else lanes

    def decode(self, lanes, scale, count):  # type: ignore[override]  # FixedPoint's is static
        values = super().decode(lanes, scale, count)
        if self._fault == "numbers" and isinstance(scale, int):
            return -values
        return values // 2 if self._fault == "sums" else values + 1 if self._fault == "offset" else values


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("floats", r"scale must return int64 \(8,\), got float64 \(8,\)"),
        ("shape", r"scale must return int64 \(8,\), got int64 \(1,\)"),
        ("range", "scale must give 0 to 40, got .*"),
        ("chance", "scale gave two answers"),
        ("changes", "encode changed the values"),
        ("type", "encode must return int32 .*, got int8"),
        ("sums", "is not the sum of decode of each"),
        ("offset", "is not the sum of decode of each"),
        ("numbers", "decode of one block must be the same with scale and count as numbers"),
    ],
)
def test_broken_requirement_of_a_codec_is_named(fault, reason):
    check_codec(Wrong(None), 4)
    with pytest.raises(CodecError, match=reason):
        check_codec(Wrong(fault), 4)
