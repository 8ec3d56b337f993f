"""Orders, pieces, the pipeline and the search, in virtual time."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kofn.config.schedule import FAMILIES as NAMES
from kofn.config.schedule import WITH_FRONT
from kofn.host.compression.side_values import SideValues
from kofn.host.schedule.agreed_search import AgreedSearch
from kofn.host.schedule.families import FAMILIES, PassSchedule
from kofn.host.schedule.layers import Layer, LayerTimes
from kofn.host.schedule.partition import partition
from kofn.host.schedule.pipeline import LinkModel, bound_s, iteration_s, leaving_order
from kofn.host.schedule.search import Enumeration, Heard, Measured, Proposals, Search
from kofn.host.schedule.wire_layout import WireLayout

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


def test_the_configuration_knows_the_families() -> None:
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
        assert all(("error", layer) in order[:at] for layer in behind), f"{step} has no error term of its output"


@given(schedules())
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


def _computed_last(of: tuple[int, ...], layers: list[Layer], schedule: PassSchedule) -> int:
    """Of the layers that leave together with these: pieces of one run have the level of its last layer."""
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
def test_every_block_is_one_layers(sizes: list[int], block: int, shuffled: random.Random | None) -> None:
    """In the order that is given, or the last layer first; each layer begins with a block."""
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
    assert (wire >= 0).all(), "neither a layer's nor padding"
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


def test_the_first_layer_s_blocks_have_numbers_before_those_that_they_overtake() -> None:
    layers, network = layers_of([100] * 3), LinkModel(rate=10.0)
    slow = LayerTimes([1.0] * 3, [1.0] * 3, [1.0] * 3)
    first = leaving_order(layers, slow, PassSchedule("priority", 1000), network, 10)
    assert first == [0] * 10 + [1] * 10 + [2] * 10, "they leave together"
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
    assert found_s - times.compute_s >= -1e-9, "less than nothing was waited for"


def test_the_bound_counts_what_no_order_can_overlap() -> None:
    """From the last layer's forward pass to the first weight gradient every mean is there, and none is under way."""
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


def test_what_overlap_and_priorities_are_worth_where_transfers_take_as_long_as_computation() -> None:
    network = LinkModel(rate=8000 / SAME.compute_s, credit=80)
    took = {name: best(name, EQUAL, SAME, network) / SAME.compute_s for name in NAMES}
    assert took["sequential"] == pytest.approx(2.0)
    assert took["buckets"] == pytest.approx(took["wait-free"]), "first in, first out: the first layer's mean comes last"
    assert took["priority"] < took["buckets"] / 1.2
    assert took["late-front"] <= took["priority"] and took["late-front"] < took["front-first"] / 1.1
    assert took["late-front"] < 1.15 * bound_s(EQUAL, SAME, network) / SAME.compute_s


def test_front_layers_first_where_the_network_is_faster() -> None:
    network = LinkModel(rate=2 * 8000 / SAME.compute_s, credit=80)
    assert best("front-first", EQUAL, SAME, network) < best("priority", EQUAL, SAME, network) / 1.05


def searched(search: Search, layers: list[Layer], times: LayerTimes, network: LinkModel, workers: int = 3) -> int:
    """Iterations until it is done, as if every schedule took what the model says."""
    said: list[SideValues] = [(0, 0, 0)] * workers  # before anything was measured
    for iteration in range(1000):
        if search.done:
            return iteration
        took = iteration_s(layers, times, search.schedule, network)
        search.hear(Heard.of(said))
        said = [search.said(Measured(iteration_s=took, times=times))] * workers
    raise AssertionError("it goes on for ever")


MILLI = LayerTimes([1e-3] * 8, [1e-3] * 8, [1e-3] * 8)


def test_the_source_s_enumeration_tries_thresholds_then_fronts() -> None:
    network = LinkModel(rate=2 * 8000 / MILLI.compute_s, credit=80)
    search = Enumeration(8, PassSchedule("front-first", 10))
    assert searched(search, EQUAL, MILLI, network) == 101 + 8 + 3
    every = {one: iteration_s(EQUAL, MILLI, one, network) for one in search.tried}
    assert every[search.schedule] == pytest.approx(min(every.values()), abs=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_proposals_are_as_good_as_a_grid_in_thirty_iterations(ratio: float) -> None:
    network = LinkModel(rate=8000 / MILLI.compute_s / ratio, credit=80)
    search = Proposals(EQUAL, PassSchedule("late-front", 1000), network)
    assert searched(search, EQUAL, MILLI, network) <= 30
    grid = min(best(name, EQUAL, MILLI, network) for name in NAMES)
    assert iteration_s(EQUAL, MILLI, search.schedule, network) <= 1.03 * grid


def test_the_slowest_worker_s_time_counts() -> None:
    search = Enumeration(1, PassSchedule("priority", 1000))
    first = search.schedule
    search.hear(Heard.of([(0, 0, 0), (0, 0, 0)]))
    search.hear(Heard.of([(1_000, 1, 1), (5_000, 1, 1)]))
    assert search.tried == {first: [0.005]} and search.schedule != first


def test_who_comes_back_has_measured_nothing() -> None:
    """That iteration counts for nothing, and what it would have told is tried again."""
    layers, network = layers_of([1000] * 3), LinkModel(rate=1e6, credit=80)
    times = LayerTimes([1e-3] * 3, [1e-3] * 3, [1e-3] * 3)
    for search in (
        Enumeration(3, PassSchedule("front-first", 10)),
        Proposals(layers, PassSchedule("priority", 10), network),
    ):
        said: SideValues = (0, 0, 0)
        for iteration in range(300):
            if search.done:
                break
            took = iteration_s(layers, times, search.schedule, network)
            search.hear(Heard.of([said, said if iteration % 7 else (0, 0, 0)]))
            said = search.said(Measured(iteration_s=took, times=times))
        assert search.done
        for one, several in search.tried.items():
            wanted = iteration_s(layers, times, one, network)
            assert several == pytest.approx([wanted] * len(several), abs=1e-6), "another schedule's time"


def test_another_replica_replays_what_was_heard() -> None:
    one, other = (AgreedSearch(lambda: Enumeration(2, PassSchedule("late-front", 100))) for _ in range(2))
    for number in range(1, 60):
        one.hear([(number % 17 + 1, 1, 1), (3, 1, 1)], 2)
    other.heard[:] = one.heard
    assert other.schedule == one.schedule and other.search.tried == one.search.tried


def agreed() -> AgreedSearch:
    return AgreedSearch(lambda: Enumeration(0, PassSchedule("priority", 10_000_000)))


def settled(search: AgreedSearch, took_us: int = 1000, k: int = 4) -> None:
    """All schedules take as long."""
    for _ in range(500):
        if search.search.done:
            return
        search.hear([(took_us, 1, 1)] * 4, k)
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize(
    ("took_us", "k", "again"), [(1000, 4, False), (1300, 4, False), (1700, 4, True), (600, 4, True)]
)
def test_a_search_begins_anew_where_iterations_take_another_time(took_us: int, k: int, again: bool) -> None:
    search = agreed()
    settled(search)
    for number in range(100):
        assert search.search.done == (number < 16 or not again), number
        search.hear([(took_us, 1, 1)] * 4, k)
        if again and not search.search.done:
            break
    settled(search, took_us)
    assert search.search.done
    for _ in range(100):
        search.hear([(took_us, 1, 1)] * 4, k)
    assert search.search.done, "by what it takes now"


def test_a_search_begins_anew_once_another_k_stays() -> None:
    search = agreed()
    settled(search)
    for number in range(40):
        search.hear([(1000, 1, 1)] * 4, 4 if number % 10 else 2)
    assert search.search.done, "now and then is no change"
    for _ in range(16):
        search.hear([(1000, 1, 1)] * 3, 3)
    assert not search.search.done
    other = agreed()
    settled(other)
    other.heard[:] = search.heard
    assert not other.search.done, "a replica that comes back begins anew as well"
