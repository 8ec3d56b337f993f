"""How fast gradients turn, how noisy they are, which workers' data differs, and what an iteration is worth."""

import math
from typing import Any

import numpy as np
import pytest

from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.limits import LAGS
from kofn_controller.estimate.correlation import FARTHEST, LENGTH_MAX, UNKNOWN, Correlation
from kofn_controller.estimate.data_skew import KNOWN, DataSkew
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.prediction import Delays, Prediction, Shares
from kofn_controller.policy.process import AGES
from kofn_controller.policy.worth import NOISE, NOISE_MAX, WorthModel

SIZE = 400


def course(*, turn: float, noise: float, gradients: int, iterations: int, seed: int = 1) -> Correlation:
    """Add aggregates of `gradients` noisy gradients; the signal keeps `turn` of its direction in each iteration."""
    random = np.random.default_rng(seed)
    signal = random.normal(size=SIZE) / math.sqrt(SIZE)
    kept: list[FloatArray] = []
    found = Correlation()
    for iteration in range(1, iterations + 1):
        singles = signal + math.sqrt(noise / SIZE) * random.normal(size=(gradients, SIZE))
        mean = singles.mean(axis=0)
        found.add(
            iteration,
            gradients=gradients,
            gradient_norm2=float(np.mean(np.sum(singles**2, axis=1))),
            norm2=float(mean @ mean),
            products=tuple(float(mean @ before) for before in reversed(kept[-LAGS:])),
        )
        kept.append(mean)
        signal = turn * signal + math.sqrt(1 - turn**2) * random.normal(size=SIZE) / math.sqrt(SIZE)
    return found


@pytest.mark.parametrize(("turn", "length"), [(0.9, 6.6), (0.7, 1.94), (0.5, 1.0), (0.3, 0.71)])
@pytest.mark.parametrize("gradients", [2, 6])
def test_correlation_length_is_where_half_is_left(turn: float, length: float, gradients: int) -> None:
    found = course(turn=turn, noise=2.0, gradients=gradients, iterations=200)
    assert found.length == pytest.approx(length, rel=0.25)


def test_noise_scale_is_that_of_single_gradients() -> None:
    assert course(turn=0.9, noise=3.0, gradients=4, iterations=200).noise_scale == pytest.approx(3.0, rel=0.25)


def test_lengths_are_bounded_and_unknown_at_first() -> None:
    assert (Correlation().length, Correlation().noise_scale, Correlation().known) == (UNKNOWN, UNKNOWN, False)
    assert course(turn=0.999, noise=0.1, gradients=4, iterations=60).length == FARTHEST * LENGTH_MAX
    assert course(turn=0.999, noise=0.1, gradients=4, iterations=12).length == LENGTH_MAX, (
        "no extrapolation before all lags are measured"
    )
    assert LENGTH_MAX < course(turn=0.97, noise=0.1, gradients=4, iterations=200).length < FARTHEST * LENGTH_MAX


def test_curve_ends_before_the_first_lag_that_was_not_measured() -> None:
    """Iterations 1, 2 and 5 have aggregates with lags of 1, 3 and 4."""
    found = Correlation()
    for iteration in (1, 2, 5):
        found.add(
            iteration, gradients=2.0, gradient_norm2=1.5, norm2=1.0, products=(0.6, 0.5, 0.4, 0.3)[: iteration - 1]
        )
    assert len(found.curve) == 2
    assert np.isfinite(found.length)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_aggregates_without_a_length_are_left_out(bad: float) -> None:
    found = Correlation()
    found.add(1, gradients=2.0, gradient_norm2=1.0, norm2=bad, products=())
    assert not found.known


def reports(worth_model: WorthModel, iterations: int) -> None:
    for iteration in range(1, iterations + 1):
        products = tuple(0.5 * 0.9**lag for lag in range(1, min(iteration - 1, LAGS) + 1))
        for rank in range(4):
            aggregate: dict[str, Any] = {
                "aggregate_norm2": 0.75,
                "aggregate_products": products,
                "gradients": 4.0,
                "contributors": 4.0,
            }
            worth_model.report(
                rank, pb.Report(iteration=iteration, first_block_s=0.01, gradient_norm2=1.5, **aggregate)
            )


def test_every_iteration_counts_once_however_many_report_it() -> None:
    worth_model = WorthModel(workers=4, average="gradients")
    reports(worth_model, 40)
    share = (4 - 2.0) / 3
    assert worth_model.correlation.signal == pytest.approx(share)
    assert worth_model.alignment[1] == pytest.approx(0.45 / 0.75 / share, rel=1e-6)


def predicted(ages: list[float], *, shares: list[float] | None = None, gradients: float = 4.0) -> Prediction:
    """Return a prediction for two workers, equal for both k: `ages`: shares of gradients by age; `shares`: of each
    worker.
    """
    delays = np.zeros((2, AGES + 1))
    delays[:, : len(ages)] = ages
    by_age = np.zeros((2, 2, AGES + 1))
    by_age[:, :, 0] = shares or [0.5, 0.5]
    return Prediction(
        mean_s=np.ones(2),
        error_s=np.zeros(2),
        gradients=np.full(2, gradients),
        delays=Delays(ks=np.array([1, 2]), by_age=delays, n=2),
        shares=Shares(ks=np.array([1, 2]), by_age=by_age, stands=np.array([0, 1])),
    )


BOTH = np.ones(2, np.bool_)


def test_old_and_noisy_gradients_are_worth_less_and_even_less_where_they_turn_fast() -> None:
    worth_model = WorthModel(workers=2, average="gradients")
    fresh, old = (worth_model.worth(predicted(ages), BOTH, 1.0)[0] for ages in ([1.0], [0.5, 0.25, 0.25]))
    noise = 2 * NOISE * min(UNKNOWN, NOISE_MAX) / UNKNOWN
    assert fresh == pytest.approx(math.exp(-noise / 4))
    assert old == pytest.approx(math.exp(-noise / 4 - 2 * 0.75 / UNKNOWN))
    assert worth_model.worth(predicted([1.0], gradients=1.0), BOTH, 1.0)[0] == pytest.approx(math.exp(-noise))
    worth_model.correlation = course(turn=0.5, noise=1.0, gradients=4, iterations=100)
    faster = worth_model.worth(predicted([0.5, 0.25, 0.25]), BOTH, 1.0) / worth_model.worth(predicted([1.0]), BOTH, 1.0)
    assert faster[0] < old / fresh


def test_age_weights_make_a_sum_younger_and_smaller() -> None:
    worth_model = WorthModel(workers=2, average="gradients")
    known = predicted([0.5, 0.0, 0.5])
    gradients = 4 * 0.625**2 / (0.5 + 0.5 / 16)
    age = 2 * 0.125 / 0.625
    worth = math.exp(-2 * age / UNKNOWN - 2 * NOISE / gradients)
    assert worth_model.worth(known, BOTH, 0.5)[0] == pytest.approx(worth)


def test_training_that_may_diverge_is_worth_hardly_anything() -> None:
    worth_model = WorthModel(workers=2, average="gradients")
    near, beyond = (worth_model.worth(predicted([0.0] * age + [1.0]), BOTH, 1.0)[0] for age in (2, 3))
    assert beyond < near * math.exp(-1 - 2.9)


def test_uncounted_contributors_make_longer_steps() -> None:
    longer = WorthModel(workers=2, average="contributors").worth(predicted([1.0]), BOTH, 1.0)
    mean = WorthModel(workers=2, average="gradients").worth(predicted([1.0]), BOTH, 1.0)
    np.testing.assert_allclose(longer / mean, [4.0, 2.0])


def test_worker_with_unlike_data_is_found_and_its_share_counts() -> None:
    worth_model = WorthModel(workers=2, average="gradients")
    few = predicted([1.0], shares=[0.9, 0.1])
    before = worth_model.worth(few, BOTH, 1.0)
    for iteration in range(1, 8):
        for rank, agreement in ((0, 0.8), (1, 0.05)):
            noise = 0.01 * (-1) ** iteration
            told = pb.Report(iteration=iteration, first_block_s=0.01, gradient_agreement=agreement + noise)
            worth_model.report(rank, told)
    assert worth_model.data_skew.skewed.tolist() == [False, True]
    np.testing.assert_allclose(worth_model.worth(few, BOTH, 1.0), before * math.sqrt(2 * 0.1))
    np.testing.assert_allclose(worth_model.worth(few, np.array([True, False]), 1.0), before, err_msg="it is not there")


def test_noise_does_not_make_a_worker_skewed() -> None:
    random = np.random.default_rng(3)
    for _ in range(20):
        data_skew = DataSkew(workers=4)
        for _ in range(50):
            for rank in range(4):
                data_skew.add(rank, 0.4 + 0.2 * random.normal())
        assert not data_skew.skewed.any()


def test_few_gradients_give_no_verdict() -> None:
    data_skew = DataSkew(workers=2)
    for _ in range(KNOWN - 1):
        data_skew.add(0, 1.0)
        data_skew.add(1, 0.0)
    assert not data_skew.skewed.any()
