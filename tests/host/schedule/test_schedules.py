"""Orders, pieces and the pipeline, in virtual time."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn_common.config.schedule import FAMILIES as NAMES
from kofn_common.config.schedule import WITH_FRONT
from kofn_host.schedule.families import FAMILIES, PassSchedule
from kofn_host.schedule.layers import Layer, LayerTimes
from kofn_host.schedule.pieces import distinct, partition
from kofn_host.schedule.pipeline import LinkModel, bound_s, iteration_s, leaving_order
from kofn_host.schedule.wire_layout import WireLayout

SIZES = st.lists(st.integers(1, 5000), min_size=1, max_size=9)


def layers_of(sizes: list[int]) -> list[Layer]:
    ends = np.cumsum(sizes).tolist()
    return [Layer(str(number), end - size, end) for number, (size, end) in enumerate(zip(sizes, ends, strict=True))]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Layer], PassSchedule]:
    layers = layers_of(draw(SIZES))
    name = draw(st.sampled_from(NAMES))
    front = draw(st.integers(0, len(layers))) if name in WITH_FRONT else 0
    return layers, PassSchedule(name, draw(st.integers(1, 20_000)), front)


def test_configuration_knows_the_families() -> None:
    assert tuple(FAMILIES) == NAMES
    assert tuple(name for name, family in FAMILIES.items() if family.has_front) == WITH_FRONT


@given(schedules())
def test_every_order_has_each_step_once_and_error_terms_first(given: tuple[list[Layer], PassSchedule]) -> None:
    layers, schedule = given
    order = schedule.order(len(layers))
    wanted = {("weight", layer) for layer in range(len(layers))} | {("error", layer) for layer in range(1, len(layers))}
    assert len(order) == len(wanted) and set(order) == wanted
    for at, step in enumerate(order):
        behind = range(step.layer + 1, len(layers))
        assert all(("error", layer) in order[:at] for layer in behind), (
            f"{step} needs the error terms of all later layers first"
        )


@given(schedules())
@pytest.mark.slow
def test_pieces_are_the_whole_gradient(given: tuple[list[Layer], PassSchedule]) -> None:
    layers, schedule = given
    pieces = partition(layers, schedule)
    covered = np.zeros(layers[-1].end, int)
    for piece in pieces:
        for layer, (begin, end) in zip(piece.layers, piece.ranges, strict=True):
            assert layers[layer].begin <= begin < end <= layers[layer].end
            covered[begin:end] += 1
        assert not schedule.family.cuts or piece.elements <= schedule.threshold
        last = _computed_last(piece.layers, layers, schedule)
        assert not schedule.family.prioritised or piece.level == len(layers) - last
    assert (covered == 1).all()


@given(schedules(), st.lists(st.integers(1, 20_000), min_size=1, max_size=20))
def test_schedules_with_the_same_passes_and_pieces_are_one(
    given: tuple[list[Layer], PassSchedule], thresholds: list[int]
) -> None:
    layers, schedule = given
    every = [PassSchedule(schedule.name, threshold, schedule.front) for threshold in thresholds]
    left = distinct(layers, every)
    pieces = [partition(layers, one) for one in left]
    assert all(one not in pieces[:at] for at, one in enumerate(pieces))
    assert all(partition(layers, one) in pieces for one in every)


def _computed_last(of: tuple[int, ...], layers: list[Layer], schedule: PassSchedule) -> int:
    """Return the last computed layer of the run that leaves with these layers; its level is that of the whole run."""
    weights = [step.layer for step in schedule.order(len(layers)) if step.kind == "weight"]
    size, run = 0, list[int]()
    for layer in weights:
        run.append(layer)
        size += layers[layer].elements
        if size >= schedule.threshold or layer == weights[-1]:
            if set(of) <= set(run):
                return run[-1]
            size, run = 0, []
    raise AssertionError(f"{of} is in no run")


@given(SIZES, st.integers(1, 700), st.randoms() | st.none())
@pytest.mark.slow
def test_every_block_belongs_to_one_layer(sizes: list[int], block: int, shuffled: random.Random | None) -> None:
    """The layers have the given order, or the last comes first; each begins with a block."""
    layers = layers_of(sizes)
    order = [layer for layer in reversed(range(len(sizes))) for _ in range(-(-sizes[layer] // block))]
    if shuffled is not None:
        shuffled.shuffle(order)
    layout = WireLayout(layers, block, order if shuffled else None)
    wire = np.full(layout.elements, -1, np.float32)
    for number, layer in enumerate(layers):
        for begin, end in (
            (layer.begin, layer.begin + layer.elements // 3),
            (layer.begin + layer.elements // 3, layer.end),
        ):
            for place, of in layout.places(number, begin, end):
                assert (wire[place] == -1).all()
                wire[place] = np.arange(of.start, of.stop)
    for begin, end in layout.padding():
        assert (wire[begin:end] == -1).all()
        wire[begin:end] = 0
    assert (wire >= 0).all(), "each element must belong to a layer or to padding"
    assert (layout.parameters(wire) == np.arange(layers[-1].end)).all()
    for number, layer in enumerate(layers):
        assert (layout.layer(number, lambda begin, end: wire[begin:end]) == np.arange(layer.begin, layer.end)).all()
        firsts = [wire[at * block] for at, one in enumerate(order) if one == number]
        assert firsts == [*range(layer.begin, layer.end, block)]


@given(schedules(), st.integers(1, 700))
def test_blocks_are_numbered_as_they_will_leave(given: tuple[list[Layer], PassSchedule], block: int) -> None:
    layers, schedule = given
    network = LinkModel(rate=1000.0)
    order = leaving_order(layers, network.as_slow(layers), schedule, network, block)
    for number, layer in enumerate(layers):
        assert order.count(number) == -(-layer.elements // block)
    WireLayout(layers, block, order)


def test_first_layers_blocks_have_numbers_before_those_they_overtake() -> None:
    layers, network = layers_of([100] * 3), LinkModel(rate=10.0)
    slow = LayerTimes([1.0] * 3, [1.0] * 3, [1.0] * 3)
    first = leaving_order(layers, slow, PassSchedule("priority", 1000), network, 10)
    assert first == [0] * 10 + [1] * 10 + [2] * 10, "the layers of a bucket must leave together"
    cut = leaving_order(layers, slow, PassSchedule("priority", 100), network, 10)
    assert cut == [2, 2, 1, 1] + [0] * 10 + [1] * 8 + [2] * 8
    fifo = leaving_order(layers, slow, PassSchedule("wait-free", 1), network, 10)
    assert fifo == [2] * 10 + [1] * 10 + [0] * 10


@given(schedules(), st.integers(0, 2**32 - 1))
def test_no_schedule_is_faster_than_the_bound(given: tuple[list[Layer], PassSchedule], seed: int) -> None:
    layers, schedule = given
    random = np.random.default_rng(seed)
    times = LayerTimes(*random.exponential(1.0, (3, len(layers))).tolist())
    network = LinkModel(rate=float(random.exponential(1000)), latency_s=0.01, credit=int(random.integers(1, 1000)))
    found_s = iteration_s(layers, times, schedule, network)
    assert found_s >= bound_s(layers, times, network) * (1 - 1e-9)
    assert found_s - times.compute_s >= -1e-9, "a wait must not be negative"


def test_bound_counts_what_no_order_can_overlap() -> None:
    """Between the last layer's forward pass and the first weight gradient all means are there and
    none is in transit.
    """
    layers, times = layers_of([1000] * 4), LayerTimes([1.0] * 4, [1.0] * 4, [1.0] * 4)
    assert bound_s(layers, times, LinkModel(rate=4000 / times.compute_s)) == pytest.approx(times.compute_s + 2)
    assert bound_s(layers, times, LinkModel(rate=1e9)) == pytest.approx(times.compute_s)
    large_first = layers_of([100_000, 1, 1, 1])
    assert bound_s(large_first, times, LinkModel(rate=10_000.0)) == pytest.approx(4 + 3 + 1 + 10, rel=1e-3)


EQUAL = layers_of([1000] * 8)
SAME = LayerTimes([1.0] * 8, [1.0] * 8, [1.0] * 8)


def best(name: str, layers: list[Layer], times: LayerTimes, network: LinkModel) -> float:
    fronts = range(len(layers) + 1) if FAMILIES[name].has_front else [0]
    return min(
        iteration_s(layers, times, PassSchedule(name, threshold, front), network)
        for threshold in (100, 500, 1000, 2000)
        for front in fronts
    )


def test_overlap_and_priorities_pay_where_transfers_take_as_long_as_computation() -> None:
    network = LinkModel(rate=8000 / SAME.compute_s, credit=80)
    took = {name: best(name, EQUAL, SAME, network) / SAME.compute_s for name in NAMES}
    assert took["sequential"] == pytest.approx(2.0)
    assert took["buckets"] == pytest.approx(took["wait-free"]), "first in, first out: the first layer's mean comes last"
    assert took["priority"] < took["buckets"] / 1.2
    assert took["late-front"] <= took["priority"] and took["late-front"] < took["front-first"] / 1.1
    assert took["late-front"] < 1.15 * bound_s(EQUAL, SAME, network) / SAME.compute_s


def test_front_layers_first_pays_where_the_network_is_faster() -> None:
    network = LinkModel(rate=2 * 8000 / SAME.compute_s, credit=80)
    assert best("front-first", EQUAL, SAME, network) < best("priority", EQUAL, SAME, network) / 1.05
