"""The search for a schedule, in virtual time."""

from collections.abc import Callable
from functools import cache
from math import log10

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schedule_search import LEAST_S, Took, course, enumeration, normal, took_s
from kofn_common.config.schedule import FAMILIES as NAMES
from kofn_host.compression.side_values import SideValues
from kofn_host.schedule.agreed_search import WATCHED, AgreedSearch
from kofn_host.schedule.families import FAMILIES, PassSchedule
from kofn_host.schedule.layers import Layer, LayerTimes
from kofn_host.schedule.pipeline import LinkModel, iteration_s
from kofn_host.schedule.race import Race, longest
from kofn_host.schedule.search import MICRO, Enumeration, GivenSchedule, Heard, Measured, Proposals, Search

EQUAL = [Layer(str(number), 1000 * number, 1000 * (number + 1)) for number in range(8)]
MILLI = LayerTimes([1e-3] * 8, [1e-3] * 8, [1e-3] * 8)
NETWORK = LinkModel(rate=2 * 8000 / MILLI.compute_s, credit=80)


@cache
def by_the_model(one: PassSchedule) -> float:
    return iteration_s(EQUAL, MILLI, one, NETWORK)


def settle(search: Search, took: Took, times: LayerTimes = MILLI, workers: int = 3) -> int:
    """Return the number of iterations of a search."""
    said: list[SideValues] = [(0, 0, 0)] * workers  # not measured yet
    for iteration in range(2 * search.most):
        if search.done:
            return iteration
        measured = Measured(iteration_s=took(search.schedule), times=times)
        search.hear(Heard.of(said))
        said = [search.said(measured)] * workers
    raise AssertionError("the search does not end")


@pytest.mark.slow
def test_enumeration_finds_the_best_threshold_then_the_best_front() -> None:
    search = Enumeration(8, PassSchedule("front-first", 10))
    assert settle(search, by_the_model) <= search.longest
    thresholds = [PassSchedule("front-first", int(10 * 1.1**number), 0) for number in range(101)]
    best = min(thresholds, key=by_the_model)
    fronts = [PassSchedule("front-first", best.threshold, front) for front in range(9)]
    assert by_the_model(search.schedule) == pytest.approx(min(map(by_the_model, fronts)), abs=1e-6)
    assert search.found_s == pytest.approx(by_the_model(search.schedule), abs=1e-6)


def test_thresholds_that_make_the_same_pieces_are_tried_once() -> None:
    tried = set[PassSchedule]()

    def took(one: PassSchedule) -> float:
        tried.add(one)
        return by_the_model(one)

    settle(Enumeration(0, PassSchedule("front-first", 8001), EQUAL), took)
    assert tried == {PassSchedule("front-first", 8001)}, (
        "both candidates send the gradient in one piece, so only one is tried"
    )


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_proposals_are_as_good_as_a_grid_in_forty_iterations(ratio: float) -> None:
    network = LinkModel(rate=8000 / MILLI.compute_s / ratio, credit=80)
    search = Proposals(EQUAL, PassSchedule("late-front", 1000), network)
    assert settle(search, lambda one: iteration_s(EQUAL, MILLI, one, network)) <= 40
    grid = min(
        iteration_s(EQUAL, MILLI, PassSchedule(name, threshold, front), network)
        for name in NAMES
        for threshold in (100, 500, 1000, 2000)
        for front in (range(9) if FAMILIES[name].has_front else [0])
    )
    assert iteration_s(EQUAL, MILLI, search.schedule, network) <= 1.03 * grid


def test_slowest_workers_time_counts() -> None:
    search = Enumeration(0, PassSchedule("priority", 1000), EQUAL[:1])
    while not search.done:
        search.hear(Heard.of([(1_000, 1, 1), (5_000, 1, 1)]))
    assert search.found_s == 0.005


@pytest.mark.parametrize(
    "new",
    [
        lambda: Enumeration(3, PassSchedule("front-first", 10)),
        lambda: Proposals(EQUAL, PassSchedule("priority", 10), NETWORK),
    ],
    ids=["enumeration", "proposals"],
)
def test_iterations_without_a_measurement_of_every_worker_do_not_count(new: Callable[[], Search]) -> None:
    whole, search = new(), new()
    settle(whole, by_the_model)
    said: SideValues = (0, 0, 0)
    for iteration in range(search.most):
        took = Measured(iteration_s=by_the_model(search.schedule), times=MILLI)
        search.hear(Heard.of([said, said if iteration % 7 else (0, 0, 0)]))
        said = search.said(took)
        if search.done:
            break
    assert search.heard < search.most, "the search must settle before its limit"
    assert (search.schedule, search.found_s) == (whole.schedule, whole.found_s)


@given(st.integers(1, 200), st.integers(1, 16), st.randoms())
@pytest.mark.slow
def test_race_ends_within_the_limit(candidates: int, least: int, random: np.random.Generator) -> None:
    race = Race([PassSchedule("priority", threshold) for threshold in range(1, candidates + 1)], least)
    before, iterations = race.following, 1  # the first time is not heard yet
    while not race.over:
        running = race.following
        race.hear(before, 10 ** random.uniform(-3, 3))
        before, iterations = running, iterations + 1
    assert iterations <= longest(candidates, least)


# -- noise


SEEDS = 12


def settled_alone(new: Callable[[], Search], took: Took, noise: Callable[[], float], iterations: int) -> PassSchedule:
    """Return the schedule of a search that settles within the limit and stays."""
    found = course(new, took, noise, iterations)
    assert found.search <= new().longest
    assert all(found.settled[found.search :]) and len(set(found.schedules[found.search :])) == 1
    return found.schedules[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "slower"), [(0.03, 0.01), (0.05, 0.015), (0.1, 0.025), (0.15, 0.035), (0.2, 0.04)])
def test_enumeration_settles_once_in_noise(spread: float, slower: float) -> None:
    """Averaged over the seeds, its choice takes at most the share `slower` longer than the best."""
    found = [settled_alone(enumeration, took_s, normal(spread, seed), 1200) for seed in range(SEEDS)]
    longer = [took_s(one) / LEAST_S - 1 for one in found]
    assert np.mean(longer) <= slower, longer


def test_stalls_do_not_restart_the_enumeration() -> None:
    """A twentieth of the iterations takes three times as long; the others differ by a tenth."""
    random = np.random.default_rng(3)

    def noise() -> float:
        return float((3.0 if random.random() < 0.05 else 1.0) * (1 + random.exponential(0.1)))

    assert took_s(settled_alone(enumeration, took_s, noise, 1500)) <= 1.05 * LEAST_S


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.03, *(pytest.param(each, marks=pytest.mark.long) for each in (0.1, 0.2))])
def test_auto_settles_once_in_noise(spread: float) -> None:
    model = Proposals(EQUAL, PassSchedule("priority", 1), NETWORK)
    least_s = min(map(by_the_model, model.candidates()))
    longer = []
    for seed in range(SEEDS):
        found = settled_alone(
            lambda: Proposals(EQUAL, PassSchedule("priority", 1000), NETWORK), by_the_model, normal(spread, seed), 600
        )
        longer.append(by_the_model(found) / least_s - 1)
    assert np.mean(longer) <= 0.03, longer


# -- agreement, and changes


def test_workers_that_hear_the_same_numbers_choose_alike() -> None:
    """One of them is replaced, in the middle of each phase, by a copy that replays the other's numbers."""
    agreed = [AgreedSearch(lambda: Enumeration(2, PassSchedule("late-front", 100))) for _ in range(2)]
    random = np.random.default_rng(5)
    for iteration in range(1200):
        said = [(int(random.integers(800, 1200)), 1, 1) for _ in range(4)]
        if iteration % 100 == 50:
            replica = AgreedSearch(lambda: Enumeration(2, PassSchedule("late-front", 100)))
            replica.heard[:] = agreed[0].heard
            agreed[1] = replica
        for one in agreed:
            one.hear(said, 4)
        assert agreed[0].schedule == agreed[1].schedule
        assert agreed[0].search.found_s == agreed[1].search.found_s
    assert agreed[0].search.done


def one_candidate() -> AgreedSearch:
    return AgreedSearch(lambda: Enumeration(0, PassSchedule("priority", 10_000_000)))


def settled(agreed: AgreedSearch, took_us: int = 1000, k: int = 4) -> None:
    """Let a search settle while every schedule takes equally long."""
    for _ in range(agreed.search.most):
        if agreed.search.done:
            return
        agreed.hear([(took_us, 1, 1)] * 4, k)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(("took_us", "again"), [(1000, False), (1300, False), (800, False), (1700, True), (600, True)])
def test_search_restarts_when_iterations_take_another_time(took_us: int, again: bool) -> None:
    agreed = one_candidate()
    settled(agreed)
    for _ in range(3 * WATCHED):
        agreed.hear([(1000, 1, 1)] * 4, 4)
    assert agreed.search.done
    for number in range(WATCHED):
        assert agreed.search.done or number > WATCHED // 2
        agreed.hear([(took_us, 1, 1)] * 4, 4)
        if not agreed.search.done:
            break
    assert agreed.search.done != again
    settled(agreed, took_us)
    for _ in range(3 * WATCHED):
        agreed.hear([(took_us, 1, 1)] * 4, 4)
    assert agreed.search.done, "the search must settle on present times"


def test_short_disturbance_restarts_nothing() -> None:
    agreed = one_candidate()
    settled(agreed)
    for number in range(10 * WATCHED):
        agreed.hear([(3000 if number % WATCHED < 20 else 1000, 1, 1)] * 4, 4)
        assert agreed.search.done


def test_enumeration_finds_another_schedule_after_a_change() -> None:
    """At first small pieces are best, then large ones, which take twice as long."""
    agreed, before, slow = AgreedSearch(lambda: Enumeration(0, PassSchedule("priority", 1000))), 0.0, False
    random, found = normal(0.05, 7), []
    for iteration in range(3000):
        slow = iteration >= 1500
        schedule = agreed.schedule
        agreed.hear([(int(before * MICRO), 1, 1)] * 4, 4)
        size = log10(schedule.threshold)
        before = random() * (0.2 * (1 + 0.1 * (7.1 - size)) if slow else 0.1 * (1 + 0.1 * (size - 3)))
        if iteration in (1499, 2999):
            assert agreed.search.done
            found.append(schedule.threshold)
    assert found[0] < 3_000 and found[1] > 4_000_000
    assert agreed.heard[0, 3] == 1, "the search must restart once"


def test_search_restarts_once_another_k_persists() -> None:
    agreed = one_candidate()
    settled(agreed)
    for number in range(3 * WATCHED):
        agreed.hear([(1000, 1, 1)] * 4, 4 if number % 10 else 2)
    assert agreed.search.done, "an occasional delay must not restart the search"
    for _ in range(WATCHED):
        agreed.hear([(1000, 1, 1)] * 3, 3)
    assert not agreed.search.done
    other = one_candidate()
    settled(other)
    other.heard[:] = agreed.heard
    assert not other.search.done, "a rejoined replica must restart its search as well"


def test_given_schedule_stays_whatever_iterations_take() -> None:
    agreed = AgreedSearch(lambda: GivenSchedule(PassSchedule("priority", 1000)))
    for number in range(3 * WATCHED):
        agreed.hear([(1000 * (number + 1), 1, 1)] * 4, 4)
    assert agreed.search.done and agreed.schedule == PassSchedule("priority", 1000)
