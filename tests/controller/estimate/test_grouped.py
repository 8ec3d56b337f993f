"""The expectation of the k-th smallest of many, against the exact dynamic programme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import choice
from kofn_controller.estimate.grouped import ENDS, by_value, grouped_counts, grouped_done
from kofn_controller.estimate.poisson import poisson_done
from kofn_controller.policy.expected_time import each_number, expected_counts, lattice


def both(rates: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the grouped answer, and the exact one for workers that have the groups' rates."""
    points, weights = lattice(float(rates.max()))
    exact = np.cumsum(each_number(poisson_done(points, np.repeat(rates, sizes)))[:-1] @ weights)
    return grouped_counts(poisson_done(points, rates), sizes, weights), exact


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 60), st.integers(1, 12)), min_size=1, max_size=16))
def test_groups_of_like_workers(made: list[tuple[float, int]]) -> None:
    rates, sizes = np.array([rate for rate, _ in made]), np.array([size for _, size in made])
    found, exact = both(rates, sizes)
    assert len(found) == sizes.sum()
    assert (np.diff(found) >= 0).all()
    ends = np.minimum(np.arange(len(found)), np.arange(len(found))[::-1]) < ENDS
    np.testing.assert_allclose(found[ends], exact[ends], atol=1e-6)
    np.testing.assert_allclose(found + 2, exact + 2, rtol=0.1)  # a sum of few events is not normal


@pytest.mark.parametrize("workers", [65, 256, 1000])
def test_many_unlike_workers(workers: int) -> None:
    groups = by_value(np.random.default_rng(workers).gamma(2.0, 3.0, workers))
    found, exact = both(groups.means, groups.sizes)
    np.testing.assert_allclose(found + 2, exact + 2, rtol=0.003)


def test_ten_thousand_workers_keep_the_sum() -> None:
    rates = np.random.default_rng(4).gamma(2.0, 3.0, 10_000)
    groups = by_value(rates)
    points, weights = lattice(float(rates.max()))
    found = grouped_counts(grouped_done(groups, points), groups.sizes, weights)
    assert found.sum() == pytest.approx(rates.sum(), rel=2e-3)  # sorting keeps the sum


def test_groups_hold_like_workers_and_keep_the_mean() -> None:
    rates = np.append(np.random.default_rng(1).gamma(2.0, 3.0, 100), 500.0)
    groups = by_value(rates)
    assert groups.sizes.sum() == 101
    assert (groups.sizes > 0).all()
    assert (np.diff(groups.means) > 0).all()
    assert groups.sizes @ groups.means == pytest.approx(rates.sum())
    assert (groups.sizes[-1], groups.means[-1]) == (1, 500.0), "a straggler has a group of its own"
    for place, mean in enumerate(groups.means):
        assert rates[groups.group == place].mean() == pytest.approx(mean)


def test_bench_times_a_correct_choice() -> None:
    rates = np.random.default_rng(1).gamma(2.0, 3.0, 12)
    best = int(np.argmin((choice.SERVICE + expected_counts(rates)) / np.arange(1, 13))) + 1
    assert choice.chosen(rates, expected_counts) in (best, 12), "k = 12 is in force and may stay within the margin"


def test_corrected_normal_is_close_to_the_exact_distribution_of_thousands() -> None:
    rates = np.random.default_rng(1).gamma(4.0, 0.5, 3000)
    rates[:300] *= 8
    off = np.abs((2 + expected_counts(rates)) / (2 + choice.exact_counts(rates)) - 1)
    assert np.median(off) < 1e-4
    assert off.max() < 3e-3
