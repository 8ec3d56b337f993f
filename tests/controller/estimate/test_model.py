"""The fitted model against data of known parameters, and against direct maximisation of the likelihood."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from bench.synthetic import ALWAYS, LARGE, SERVICE_S, SMALL, SyntheticSetting
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import fit
from kofn_controller.estimate.poisson import interval, poisson_rates
from kofn_controller.estimate.time_scales import EVENT_MIN_S, NOISE, estimate_service, in_events


def made(lambdas_s: list[float], *, blocks: int, seed: int = 1, event_s: float = 0.005) -> FloatArray:
    random = np.random.default_rng(seed)
    means = np.array(lambdas_s)[:, None] / event_s
    counts = random.poisson(np.broadcast_to(means, (len(lambdas_s), blocks)))
    return np.asarray(0.010 + event_s * counts + random.exponential(0.0002, counts.shape))


def whole(times_s: FloatArray) -> BoolArray:
    return np.zeros(times_s.shape, dtype=np.bool_)


def test_parameters_are_recovered() -> None:
    lambdas_s = [0.001, 0.005, 0.020, 0.060]
    times_s = made(lambdas_s, blocks=2000)
    found = fit(times_s, whole(times_s))
    assert found.service_s == pytest.approx(0.010, rel=2 * NOISE)
    assert found.event_s == pytest.approx(0.005, rel=0.1)
    np.testing.assert_allclose(found.lambda_s, lambdas_s, rtol=0.1, atol=0.0004)
    np.testing.assert_allclose(found.dispersion[1:], 1.0, atol=0.15)
    assert (found.low_s < found.lambda_s).all()
    assert (found.lambda_s < found.high_s).all()


@pytest.mark.parametrize("mean", [0.5, 3.0, 12.0])
def test_interval_covers_as_often_as_stated(mean: float) -> None:
    counts = np.random.default_rng(2).poisson(mean, (8000, 16)).astype(np.float64)
    rate, blocks = poisson_rates(counts, whole(counts))
    low, high = interval(rate, blocks)
    assert 0.935 <= np.mean((low <= mean) & (mean <= high)) <= 0.965


def mid_p(total: int, mean: float) -> float:
    """Return P(N < total) + P(N = total) / 2."""
    return float(stats.poisson.cdf(total, mean) - stats.poisson.pmf(total, mean) / 2)


@pytest.mark.parametrize("total", [1, 3, 10, 40])
def test_interval_is_within_a_third_of_an_event_of_the_mid_p_one(total: int) -> None:
    low, high = interval(np.array([total / 16]), np.array([16.0]))
    exact = [optimize.brentq(lambda mean, p=p: mid_p(total, mean) - p, 1e-9, 200) for p in (0.975, 0.025)]
    np.testing.assert_allclose([16 * low[0], 16 * high[0]], exact, rtol=0, atol=0.33)


def test_no_events_have_an_interval_from_zero() -> None:
    low, high = interval(np.zeros(1), np.array([16.0]))
    assert low[0] == 0
    assert 2 < 16 * high[0] < 3.7


def test_interval_is_wider_where_the_unit_is_hardly_known() -> None:
    known, hardly = (np.diff(interval(np.ones(1), np.full(1, 16.0), freedom), axis=0) for freedom in (np.inf, 5.0))
    assert 1.2 < hardly / known < 1.5  # Student's 2.57 against 1.96


counts_and_cuts = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=2, max_size=24).filter(
    lambda pairs: any(not cut for _, cut in pairs)
)


@given(counts_and_cuts)
@pytest.mark.slow
def test_censored_rates_maximise_the_likelihood(pairs: list[tuple[int, bool]]) -> None:
    counts, cut = np.array([[c for c, _ in pairs]], dtype=np.float64), np.array([[c for _, c in pairs]])

    def loss(rate: float) -> float:
        exact = stats.poisson.logpmf(counts[~cut], rate).sum()
        return float(-exact - stats.poisson.logsf(counts[cut] - 1, rate).sum())

    (rate,), (blocks,) = poisson_rates(counts, cut)
    best = optimize.minimize_scalar(loss, bounds=(1e-9, 200.0), method="bounded", options={"xatol": 1e-9})
    assert loss(max(rate, 1e-9)) <= best.fun + 1e-6 * (1 + abs(best.fun))
    assert 0 < blocks <= len(pairs) + 1e-6  # a lower bound tells less than an observation


def test_dropping_censored_observations_would_make_slow_workers_look_fast() -> None:
    random = np.random.default_rng(3)
    counts = random.poisson(12.0, (1, 4000)).astype(np.float64)
    cut = counts > 10
    counts = np.minimum(counts, 10.0)
    (rate,), _ = poisson_rates(np.where(cut, 11.0, counts), cut)
    assert counts[~cut].mean() < 9
    assert rate == pytest.approx(12.0, rel=0.03)


def test_worker_with_lower_bounds_only_has_an_estimate() -> None:
    counts, cut = np.array([[12.0, 15.0], [0.0, 1.0]]), np.array([[True, True], [False, False]])
    rate, blocks = poisson_rates(counts, cut)
    assert 12 < rate[0] < 40
    assert 0 < blocks[0] <= 2.2


def test_unknown_worker_gets_the_others_mean_and_no_interval() -> None:
    times_s = made([0.005, 0.010, 0.005], blocks=16)
    times_s[2] = np.nan
    found = fit(times_s, whole(times_s))
    assert found.lambda_s[2] == pytest.approx(found.lambda_s[:2].mean())
    assert (found.blocks[2], found.low_s[2], found.high_s[2]) == (0, 0, np.inf)


@pytest.mark.filterwarnings("error")
def test_no_measurements_give_a_finite_estimate() -> None:
    times_s = np.full((3, 16), np.nan)
    found = fit(times_s, whole(times_s), np.array([0.0, 1.0, 0.0]))
    assert found.service_s == 0
    assert found.event_s == EVENT_MIN_S
    assert np.isfinite(found.lambda_s).all()


def test_no_blocking_falls_back_to_a_share_of_s() -> None:
    times_s = np.full((2, 16), 0.010)
    found = fit(times_s, whole(times_s))
    assert found.service_s == pytest.approx(0.010)
    assert found.event_s == pytest.approx(0.001)
    np.testing.assert_array_equal(found.lambda_s, 0)


def test_one_long_pause_does_not_become_the_unit_of_all() -> None:
    times_s = made([0.001, 0.005, 0.020, 0.001], blocks=16)
    before = fit(times_s, whole(times_s)).event_s
    times_s[0, 7] = 2.0
    assert fit(times_s, whole(times_s)).event_s == pytest.approx(before, rel=0.25)


def test_single_events_among_unblocked_blocks_are_the_unit() -> None:
    times_s = 0.010 + np.random.default_rng(1).exponential(0.0002, (3, 16))
    times_s[[0, 1, 2], [3, 9, 12]] += 0.005
    assert 0.0025 < fit(times_s, whole(times_s)).event_s < 0.006  # the unit is not the noise, 0.0002


def test_unit_is_found_where_half_of_the_blocks_are_cut_off() -> None:
    random = np.random.default_rng(4)
    means = np.geomspace(2, 20, 8)[:, None]
    counts = random.poisson(means, (2, 8, 400))
    times_s, ends_s = 0.010 + 0.005 * counts + random.uniform(0, 1e-5, counts.shape)  # ties go either way
    times_s[0, :20] = 0.010  # each worker is unblocked now and then
    cut = ends_s < times_s
    found = fit(np.minimum(times_s, ends_s), cut)
    assert 0.45 < cut.mean() < 0.55
    assert found.event_s == pytest.approx(0.005, rel=0.1)
    np.testing.assert_allclose(found.lambda_s[1:], 0.005 * means[1:, 0], rtol=0.06)
    assert found.poisson.all()


def test_s_is_near_the_second_smallest_time() -> None:
    times_s = made([0.001] * 4, blocks=16)
    assert estimate_service(times_s, whole(times_s)) <= np.sort(times_s, axis=None)[1] * (1 + NOISE)


@pytest.mark.parametrize("odd_s", [0.001, 0.010, 0.019])
def test_single_impossibly_fast_report_changes_s_little(odd_s: float) -> None:
    times_s = np.random.default_rng(0).uniform(0.020, 0.0205, (4, 16))
    before_s = estimate_service(times_s, whole(times_s))
    times_s[2, 5] = odd_s
    assert estimate_service(times_s, whole(times_s)) == pytest.approx(before_s, rel=0.01)


def test_silence_raises_the_estimate_steadily() -> None:
    times_s = made([0.001] * 4, blocks=16)
    silences = [0.0, 0.02, 0.05, 0.1, 0.3]
    lambdas = [fit(times_s, whole(times_s), np.array([0, 0, 0, silent])).lambda_s for silent in silences]
    assert (np.diff([row[3] for row in lambdas]) > 0).all()
    assert lambdas[-1][3] > 10 * lambdas[-1][0]
    np.testing.assert_allclose(lambdas[-1][:3], lambdas[0][:3])


@pytest.mark.slow
@pytest.mark.parametrize("censored", [0.0, 0.5])
@pytest.mark.parametrize("events", [SMALL, LARGE])
def test_intervals_hold_the_truth_as_often_as_stated(events: tuple[float, float], censored: float) -> None:
    setting, random = SyntheticSetting(workers=8, censored=censored, events=events), np.random.default_rng(6)
    held, total = [], []
    for _ in range(100):
        found = fit(*setting.made(random))
        mean_s = SERVICE_S + setting.lambda_s - found.service_s
        held.append((found.low_s <= setting.lambda_s) & (setting.lambda_s <= found.high_s + found.hidden_s))
        total.append((found.low_s <= mean_s) & (mean_s <= found.high_s))
    assert 0.92 <= np.mean(held) <= 0.985
    assert 0.92 <= np.mean(total) <= 0.985


@pytest.mark.slow
def test_worker_that_is_never_unblocked_may_have_been_blocked_for_all_of_s() -> None:
    """Then s is too large and lambda too small. The sum's interval holds the truth, and lambda has a wider interval."""
    setting, random = SyntheticSetting(workers=8, censored=0.0, events=ALWAYS), np.random.default_rng(7)
    alone, wider, total = [], [], []
    for _ in range(100):
        found = fit(*setting.made(random))
        mean_s = SERVICE_S + setting.lambda_s - found.service_s
        alone.append((found.low_s <= setting.lambda_s) & (setting.lambda_s <= found.high_s))
        wider.append((found.low_s <= setting.lambda_s) & (setting.lambda_s <= found.high_s + found.hidden_s))
        total.append((found.low_s <= mean_s) & (mean_s <= found.high_s))
    assert np.mean(alone) < 0.2
    assert np.mean(wider) >= 0.94
    assert 0.92 <= np.mean(total) <= 0.985


def test_no_blocking_hides_in_s_where_workers_are_sometimes_unblocked() -> None:
    setting, random = SyntheticSetting(workers=8, censored=0.0, events=LARGE), np.random.default_rng(8)
    hidden = [fit(*setting.made(random)).hidden_s for _ in range(50)]
    assert np.mean(np.array(hidden) == 0) >= 0.95


def test_worker_that_is_always_cut_off_has_no_upper_bound() -> None:
    times_s = made([0.001, 0.005, 0.020, 0.060], blocks=16)
    cut = whole(times_s)
    cut[3], times_s[3] = True, 0.025
    found = fit(times_s, cut)
    assert found.high_s[3] == np.inf
    assert 0 < found.low_s[3] < found.lambda_s[3] < np.inf
    assert np.isfinite(found.high_s[:3]).all()
    cut[3, 0], times_s[3, 0] = False, 0.030
    assert np.isfinite(fit(times_s, cut).high_s[3]), "one uncensored time bounds the interval"


def test_start_of_the_search_does_not_matter() -> None:
    times_s = made([0.001, 0.005, 0.020, 0.060], blocks=16)
    cut = times_s > 0.040
    times_s = np.minimum(times_s, 0.040)
    cold, far = fit(times_s, cut), fit(made([0.060, 0.001, 0.001, 0.001], blocks=16), whole(times_s))
    warm = fit(times_s, cut, None, None, far)
    np.testing.assert_allclose(warm.lambda_s, cold.lambda_s, rtol=1e-3)
    np.testing.assert_allclose(warm.high_s, cold.high_s, rtol=1e-2)


def test_many_workers_are_fitted_like_few() -> None:
    """Hazards, intervals and the test of the fit use other code for many workers."""
    setting, random = SyntheticSetting(workers=3000, censored=0.3, events=LARGE), np.random.default_rng(9)
    times_s, cut = setting.made(random)
    found = fit(times_s, cut)
    counts = in_events(np.maximum(times_s - found.service_s, 0.0), cut, found.event_s)
    some = np.arange(0, 3000, 150)
    rate, _ = poisson_rates(counts[some], cut[some], settled=1e-6)
    np.testing.assert_allclose(found.lambda_s[some] / found.event_s, rate, rtol=1e-3)
    assert np.mean((found.low_s <= setting.lambda_s) & (setting.lambda_s <= found.high_s)) > 0.93
    assert found.poisson.mean() > 0.999


@settings(deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.none() | st.floats(0, 3600), min_size=6, max_size=6), min_size=n, max_size=n)
    ),
    st.integers(0, 2**30 - 1),
    st.floats(0, 100),
)
@pytest.mark.filterwarnings("error")
@pytest.mark.slow
def test_any_measurements_give_finite_ordered_estimates(
    rows: list[list[float | None]], bits: int, silent_s: float
) -> None:
    times_s = np.array([[np.nan if x is None else x for x in row] for row in rows])
    cut = (bits >> np.arange(times_s.size).reshape(times_s.shape)) & 1 == 1
    found = fit(times_s, cut, np.full(len(rows), silent_s))
    assert found.event_s >= EVENT_MIN_S
    assert np.isfinite(found.lambda_s).all()
    assert (found.lambda_s >= 0).all()
    slack = 1e-9 + 1e-6 * found.lambda_s
    assert (found.low_s <= found.lambda_s + slack).all()
    assert (found.lambda_s <= found.high_s + slack).all()
    smallest = times_s[~cut & ~np.isnan(times_s)].min(initial=np.inf)
    assert found.service_s <= (1 + NOISE) * smallest
