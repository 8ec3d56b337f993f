"""E of the k-th smallest of many, against the exact dynamic programme."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import choice
from controller.choose import _each, expected_counts, groups, lattice
from controller.grouped import ENDS, grouped_counts
from controller.poisson import poisson_done


def both(rates: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The grouped answer, and the exact one for workers that are really so."""
    points, weights = lattice(float(rates.max()))
    exact = np.cumsum(_each(poisson_done(points, np.repeat(rates, sizes)))[:-1] @ weights)
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
    np.testing.assert_allclose(found + 2, exact + 2, rtol=0.1)  # a sum of few events is no normal


@pytest.mark.parametrize("workers", [65, 256, 1000])
def test_many_unlike_workers(workers: int) -> None:
    found, exact = both(*groups(np.random.default_rng(workers).gamma(2.0, 3.0, workers)))
    np.testing.assert_allclose(found + 2, exact + 2, rtol=0.003)


def test_ten_thousand_workers_keep_the_sum() -> None:
    rates, sizes = groups(np.random.default_rng(4).gamma(2.0, 3.0, 10_000))
    points, weights = lattice(float(rates.max()))
    found = grouped_counts(poisson_done(points, rates), sizes, weights)
    assert found.sum() == pytest.approx(sizes @ rates, rel=2e-3)  # order statistics only reorder


def test_what_the_bench_times_is_a_choice() -> None:
    rates = np.random.default_rng(1).gamma(2.0, 3.0, 12)
    best = int(np.argmin((choice.SERVICE + expected_counts(rates)) / np.arange(1, 13))) + 1
    assert choice.chosen(rates, expected_counts) in (best, 12), "12 is in force, and stays within the margin"
