"""Workers' own distributions: one against a manual Kaplan-Meier estimate, many at once, and groups."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kofn_controller.estimate.curves import Curves
from kofn_controller.estimate.grouped import by_value


def curve(counts: list[float], cut: list[bool], rate: float) -> Curves:
    """Return the curve of one worker."""
    return Curves.of(np.zeros(1, np.int64), np.array([counts]), np.array([cut]), np.array([rate]))


observations = st.lists(st.tuples(st.floats(0, 50), st.booleans()), min_size=1, max_size=20)


@settings(deadline=None)
@given(observations, st.floats(0.1, 40))
def test_curve_is_a_distribution(pairs: list[tuple[float, bool]], rate: float) -> None:
    made = curve([c for c, _ in pairs], [cut for _, cut in pairs], rate)
    (done,) = made.done(np.arange(200, dtype=np.float64))
    assert (np.diff(done) >= -1e-9).all()
    assert done.min() >= 0
    assert done.max() <= 1
    assert done[-1] > 1 - 1e-6
    assert np.isfinite(made.longest).all()
    quantiles = made.quantiles(0, np.array([0.1, 0.5, 0.9]))
    assert (np.diff(quantiles) >= 0).all()
    assert np.isfinite(quantiles).all()


def test_curve_equals_kaplan_meiers() -> None:
    made = curve([1.0, 2.0, 2.0, 3.0, 5.0, np.nan], [False, True, False, False, True, False], 3.0)
    seen = made.masses[0] > 0
    np.testing.assert_allclose(made.counts[0, seen], [1, 2, 3])
    np.testing.assert_allclose(made.masses[0, seen], [0.2, 0.2, 0.3])  # 4/5, then 3/4 of it, then 1/2 of that
    assert (made.left[0], made.bound[0]) == (pytest.approx(0.3), 5.0)
    at = made.done(np.array([5.0, 6.0]))[0]
    assert at[0] == pytest.approx(0.7)
    assert at[1] == pytest.approx(1 - 0.3 * stats.poisson.sf(6, 3.0) / stats.poisson.sf(5, 3.0))


def test_curve_splits_a_count_between_two_points_and_keeps_the_mean() -> None:
    made = curve([3.25], [False], 1.0)
    np.testing.assert_allclose(made.done(np.arange(6.0))[0], [0, 0, 0, 0.75, 1, 1])
    np.testing.assert_allclose(made.reached(np.array([3.2, 3.3]))[0], [0, 1])


def test_quantiles_give_the_distribution_back() -> None:
    random = np.random.default_rng(1)
    made = curve(random.gamma(2.0, 5.0, 16).tolist(), (random.random(16) < 0.3).tolist(), 10.0)
    drawn = made.quantiles(0, (np.arange(4000) + 0.5) / 4000)
    points = np.arange(40.0)
    np.testing.assert_allclose(np.mean(drawn <= points[:, None], axis=1), made.reached(points)[0], atol=1e-3)


def test_group_distribution_is_the_mean_of_its_members() -> None:
    counts = np.random.default_rng(2).poisson(5.0, (40, 16)).astype(np.float64)
    made = Curves.of(np.arange(40), counts, np.zeros(counts.shape, np.bool_), counts.mean(axis=1))
    groups, points = by_value(made.rate, 4), np.arange(30.0)
    found = made.done(points, groups)
    assert found.shape == (4, 30)
    for place in range(4):
        np.testing.assert_allclose(found[place], made.done(points)[groups.group == place].mean(axis=0))
