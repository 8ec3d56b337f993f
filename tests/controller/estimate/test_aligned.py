"""Times are aligned by iteration, and unknown times of an iteration are filled in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from kofn_controller.estimate.aligned import align, completed, filled
from kofn_controller.estimate.curves import Curves


def test_latest_iterations_are_aligned() -> None:
    values = np.array([[1.0, 2.0, 3.0], [np.nan, 5.0, 6.0], [7.0, 8.0, 9.0]])
    iterations = np.array([[7, 8, 9], [0, 6, 9], [2, 5, 8]])
    found = align(values, iterations)
    np.testing.assert_array_equal(found, [[1, 2, 3], [np.nan, np.nan, 6], [np.nan, 9, np.nan]])


def test_no_times_are_aligned_to_none() -> None:
    assert np.isnan(align(np.full((2, 3), np.nan), np.zeros((2, 3), np.int64))).all()


@given(st.lists(st.tuples(st.floats(0, 50), st.booleans()), min_size=1, max_size=16), st.floats(0.1, 30))
def test_lower_bound_becomes_a_larger_value_and_known_values_stay(pairs: list[tuple[float, bool]], rate: float) -> None:
    counts, cut = np.array([[c for c, _ in pairs]]), np.array([[cut for _, cut in pairs]])
    made = completed(counts, cut, np.array([rate]))
    np.testing.assert_array_equal(made[~cut], counts[~cut])
    assert (made[cut] >= counts[cut] - 1e-5).all()


def test_lower_bounds_are_drawn_from_kaplan_meiers_distribution() -> None:
    random = np.random.default_rng(1)
    counts = np.tile(random.gamma(2.0, 5.0, 16), (4000, 1))
    cut = np.tile(np.arange(16) % 3 == 0, (4000, 1))
    cut[:, np.argmax(counts[0])] = False  # so that no value beyond it is drawn
    made = completed(counts, cut, np.full(4000, 10.0))
    points = np.sort(counts[0][~cut[0]]) + 1e-3
    curve = Curves.of(np.zeros(1, np.int64), counts[:1], cut[:1], np.array([10.0]))
    np.testing.assert_allclose(np.mean(made[..., None] <= points, axis=(0, 1)), curve.reached(points)[0], atol=0.02)


def test_poisson_tail_continues_beyond_the_largest_bound() -> None:
    counts, cut = np.full((4000, 1), 6.0), np.ones((4000, 1), np.bool_)
    made = completed(counts, cut, np.full(4000, 5.0))
    assert made.min() >= 6
    tail = stats.poisson(5.0).expect(lambda count: count, lb=7) + 0.5 * 6 * stats.poisson.pmf(6, 5.0)
    expected = tail / (stats.poisson.sf(6, 5.0) + 0.5 * stats.poisson.pmf(6, 5.0))  # half of the ties
    assert made.mean() == pytest.approx(expected, rel=0.02)


def test_gaps_are_filled_with_the_workers_other_times() -> None:
    values = np.array([[1.0, 1.0, 2.0], [np.nan, np.nan, 7.0], [np.nan, np.nan, np.nan]])
    rows = np.array([[np.nan, 1.0, 2.0], [np.nan, 7.0, np.nan], [np.nan, np.nan, np.nan]])
    made = filled(rows, values, np.array([1.0, 7.0, 400.0]))
    known = ~np.isnan(rows)
    np.testing.assert_array_equal(made[known], rows[known])
    assert set(made[0]) <= {1.0, 2.0}
    assert set(made[1]) == {7.0}
    assert (made[2] > 300).all(), "a worker without counts gets draws at its fitted rate"
