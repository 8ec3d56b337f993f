"""The estimate finds slower links and their extra time."""

import numpy as np
import pytest

from kofn_controller.estimate.links import LATEST, LinkDelays, compare
from kofn_controller.estimate.measurements import LINK_WAITS, BoolArray, FloatArray

SERVICE_S = 0.010
ALL = np.ones(4, dtype=np.bool_)
SURE = np.zeros((4, LINK_WAITS), dtype=np.bool_)


def waits(*means_s: float, noise_s: float = 1e-3, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).gamma(2.0, noise_s / 2, (len(means_s), LINK_WAITS)) + np.array(means_s)[:, None]


def delays_s(waits_s: FloatArray, live: BoolArray) -> FloatArray:
    return compare(waits_s, SURE, live, SERVICE_S, LinkDelays.unknown(4)).delays_s


@pytest.mark.parametrize("excess_s", [5e-3, 30e-3, 0.2])
def test_slow_link_counts_beyond_a_usual_one(excess_s: float) -> None:
    found = delays_s(waits(0, 0, 0, excess_s), ALL)
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3] == pytest.approx(excess_s, abs=1e-3)


def test_two_slow_links_of_four_count_and_the_common_time_does_not() -> None:
    assert delays_s(waits(0.02, 0.05, 0.08, 0.02), ALL) == pytest.approx([0, 0.03, 0.06, 0], abs=2e-3)


def test_equal_links_count_for_nothing_in_nearly_all_windows() -> None:
    found = np.array([delays_s(waits(0, 0, 0, 0, seed=seed), ALL) for seed in range(300)])
    assert (found > 0).any(axis=1).mean() < 0.02
    assert found.max() < 3e-3


def test_lone_straggler_waits_less_than_workers_that_compete() -> None:
    """The competing workers do not count as slower: the typical worker is one of them."""
    assert delays_s(waits(0, 4e-3, 4e-3, 4e-3), ALL).tolist() == [0, 0, 0, 0]


def test_change_is_seen_with_the_second_gradient() -> None:
    found = waits(0, 0, 0, 0)
    found[3, -1] += 0.05
    assert delays_s(found, ALL)[3] == 0
    found[3, -2] += 0.05
    assert delays_s(found, ALL)[3] == pytest.approx(0.05, abs=2e-3)
    found[3] = [*waits(0.05)[0, :-2], 1e-3, 1e-3]
    assert delays_s(found, ALL)[3] == 0


def test_lost_probes_make_no_link_slow() -> None:
    found, unsure = waits(0, 0, 0, 0), SURE.copy()
    found[3, -LATEST:] += 0.05
    unsure[3, -LATEST:] = True
    assert compare(found, unsure, ALL, SERVICE_S, LinkDelays.unknown(4)).delays_s[3] == 0
    unsure[3, -1] = False
    assert compare(found, unsure, ALL, SERVICE_S, LinkDelays.unknown(4)).delays_s[3] > 0


def test_unknown_and_dead_workers_count_for_nothing() -> None:
    found = waits(0, 0, 0.05, 0.05)
    found[2, : 1 - LATEST] = np.nan
    assert delays_s(found, np.array([True, True, True, False])).tolist() == [0, 0, 0, 0]
    assert delays_s(found, np.array([False, False, False, True])).tolist() == [0, 0, 0, 0]
    assert delays_s(np.full((4, LINK_WAITS), np.nan), ALL).tolist() == [0, 0, 0, 0]


def test_link_is_slow_from_a_block_time_beyond_the_noise_until_it_is_like_the_others() -> None:
    links = compare(waits(0, 0, 0, 5e-3), SURE, ALL, SERVICE_S, LinkDelays.unknown(4))
    assert links.delays_s[3] > 0
    assert not links.slow.any(), "no packets need to wait for so short a delay"
    slow = compare(waits(0, 0, 0, 30e-3), SURE, ALL, SERVICE_S, links)
    assert slow.slow.tolist() == [False, False, False, True]
    assert slow.usual_s < slow.fence_s < 15e-3
    assert compare(waits(0, 0, 0, 5e-3), SURE, ALL, SERVICE_S, slow).slow[3], "it paces itself, so its waits are exact"
    assert not compare(waits(0, 0, 0, 1e-3), SURE, ALL, SERVICE_S, slow).slow.any()
