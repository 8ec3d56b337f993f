"""What an iteration is worth: against gradients of which everything is known, by hand, and with whatever may come."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.carryover import LAGS, Prediction
from controller.measure import Report
from controller.progress import PRIOR_RHO, RHO_MIN, SIGNAL_MIN, Mean, Products, Progress
from run.config import Average

ELEMENTS = 2000
AVERAGES: tuple[Average, ...] = ("gradients", "contributors")


class Training:
    """Workers that send gradients: G_t and noise of variance phi |G|^2; G_t keeps rho of its direction each time."""

    def __init__(
        self,
        *,
        n: int,
        k: int,
        phi: float,
        rho: float,
        average: Average = "gradients",
        delay: int = 1,
        stashes: bool = True,
        seed: int = 1,
    ) -> None:
        self._random = np.random.default_rng(seed)
        self._n, self._k, self._phi, self._rho, self._delay, self._stashes = n, k, phi, rho, delay, stashes
        self._true = self._random.normal(size=ELEMENTS) / math.sqrt(ELEMENTS)
        self._aggregates: list[np.ndarray] = []
        self._stash: dict[int, list[np.ndarray]] = {}
        self.progress = Progress(average=average)

    def run(self, iterations: int, phi: float | None = None) -> Progress:
        """So many more: all reports, in order."""
        self._phi = self._phi if phi is None else phi
        first = len(self._aggregates) + 1
        for iteration in range(first, first + iterations):
            for report in self._iterate(iteration):
                self.progress.report(report)
        return self.progress

    def _iterate(self, iteration: int) -> Iterator[Report]:
        """The workers that are late take turns; each of their gradients is in the next sum, `delay` later."""
        turned = self._random.normal(size=ELEMENTS) / math.sqrt(ELEMENTS)
        self._true = self._rho * self._true + math.sqrt(1 - self._rho**2) * turned
        noise = self._random.normal(size=(self._n, ELEMENTS)) * math.sqrt(self._phi / ELEMENTS)
        given = self._true + noise
        turn = iteration // self._delay
        members = [(turn * (self._n - self._k) + i) % self._n for i in range(self._k)]
        held = [given[rank] for rank in members] + [old for rank in members for old in self._stash.pop(rank, [])]
        mean = np.sum(held, axis=0) / (len(held) if self.progress.average == "gradients" else self._k)
        products = tuple(float(mean @ before) for before in self._aggregates[: -LAGS - 1 : -1])
        self._aggregates.append(mean)
        for rank in range(self._n):
            late = rank not in members
            if late and self._stashes:
                self._stash.setdefault(rank, []).append(given[rank])
            yield Report(
                iteration=iteration,
                first_block_s=0.01,
                late=late,
                gradient_norm2=float(given[rank] @ given[rank]),
                aggregate_norm2=float(mean @ mean),
                products=products,
                gradients=float(len(held)),
                contributors=float(self._k),
            )


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("phi", [0.5, 3.0, 12.0])
def test_signal_and_noise_of_fresh_gradients_are_found(phi: float, average: Average) -> None:
    progress = Training(n=6, k=6, phi=phi, rho=0.98, average=average).run(200)
    assert progress.signal == pytest.approx(1, rel=0.05)
    assert progress.noise_scale == pytest.approx(phi, rel=0.1, abs=0.1)


@pytest.mark.parametrize("rho", [1.0, 0.97, 0.8, 0.0])
def test_what_is_left_of_a_direction_is_found(rho: float) -> None:
    found = Training(n=6, k=6, phi=2.0, rho=rho).run(300).alignment
    np.testing.assert_allclose(found, rho ** np.arange(LAGS + 1.0), atol=0.12)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("k", [2, 4])
def test_late_gradients_in_a_later_sum_do_not_change_what_is_found(k: int, average: Average) -> None:
    """Sums of one to n gradients, a few of them old: neither their number nor what they are divided by shows."""
    progress = Training(n=6, k=k, phi=3.0, rho=0.99, average=average).run(400)
    assert progress.signal == pytest.approx(1, rel=0.1)
    assert progress.noise_scale == pytest.approx(3, rel=0.15)
    np.testing.assert_allclose(progress.alignment, 0.99 ** np.arange(LAGS + 1.0), atol=0.12)


@pytest.mark.parametrize("phi", [0.5, 3.0, 12.0])
def test_sums_of_one_gradient_show_the_noise_in_their_products(phi: float) -> None:
    """Late gradients are thrown away, and k = 1: only the sum of the iteration before tells noise from signal."""
    progress = Training(n=4, k=1, phi=phi, rho=PRIOR_RHO, stashes=False).run(400)
    assert progress.noise_scale == pytest.approx(phi, rel=0.25)
    np.testing.assert_allclose(progress.alignment[:4], PRIOR_RHO ** np.arange(4), atol=0.12)


def test_the_latest_iterations_count() -> None:
    training = Training(n=4, k=4, phi=8.0, rho=0.98)
    training.run(200)
    assert training.run(200, phi=1.0).noise_scale == pytest.approx(1.2, abs=0.3)


def test_many_workers_are_remembered_as_long_as_few() -> None:
    """All norms shrink by a third every 20 iterations: signal and single gradient are of the same time."""
    for n in (4, 64):
        progress = Progress(average="gradients")
        for iteration in range(1, 200):
            size = (2 / 3) ** (iteration / 20)
            for _ in range(n):
                report = single(iteration, gradient=4 * size, aggregate=size * (1 + 3 / n), gradients=n)
                progress.report(report)
        assert progress.noise_scale == pytest.approx(3, rel=0.2)


def single(
    iteration: int,
    *,
    gradient: float = 4.0,
    aggregate: float = 2.0,
    gradients: float = 2.0,
    contributors: float = 2.0,
    products: tuple[float, ...] = (),
) -> Report:
    """A report of which only this is looked at."""
    return Report(
        iteration=iteration,
        first_block_s=0.01,
        gradient_norm2=gradient,
        aggregate_norm2=aggregate,
        products=products,
        gradients=gradients,
        contributors=contributors,
    )


def prediction(gradients: list[float], delays: list[list[float]]) -> Prediction:
    """Times do not matter; the shares of the first delays."""
    padded = np.zeros((len(gradients), LAGS + 1))
    for row, shares in zip(padded, delays, strict=True):
        row[: len(shares)] = shares
    nothing = np.zeros(len(gradients))
    return Prediction(mean_s=nothing, error_s=nothing, gradients=np.array(gradients), delays=padded)


def test_before_anything_is_known_the_prior_holds() -> None:
    progress = Progress(average="gradients")
    assert (progress.signal, progress.noise_scale) == (0, 0)
    np.testing.assert_allclose(progress.alignment, PRIOR_RHO ** np.arange(LAGS + 1))
    found = progress.worth(prediction([1.5, 2.0], [[0.5, 0.5], [1.0]]))
    np.testing.assert_allclose(found, [(0.5 + 0.5 * PRIOR_RHO) ** 2, 1.0])


@pytest.mark.parametrize(("average", "steps"), [("gradients", [1.0, 1.0]), ("contributors", [1.5, 1.0])])
def test_worth_by_hand(average: Average, steps: list[float]) -> None:
    """|g|^2 = 4 = |G|^2 + S, |G|^2 + S / 2 = 3: |G|^2 = 2, phi = 1."""
    progress = Progress(average=average)
    for iteration in range(1, 10):
        for _ in range(2):
            progress.report(single(iteration, aggregate=3.0))
    assert progress.signal == pytest.approx(2)
    assert progress.noise_scale == pytest.approx(1)
    aligned = np.array([0.5 + 0.5 * PRIOR_RHO, 1.0])
    np.testing.assert_allclose(
        progress.worth(prediction([1.5, 2.0], [[0.5, 0.5], [1.0]])),
        np.array(steps) * aligned**2 / np.array([1 + 1 / 1.5, 1.5]),
    )


def test_a_gradient_that_nothing_can_be_compared_with_is_taken_as_it_is() -> None:
    progress = Progress(average="gradients")
    for iteration in range(1, 20):
        progress.report(single(iteration, aggregate=4.0, gradients=1.0, contributors=1.0))
    assert progress.signal == pytest.approx(4)
    assert progress.noise_scale == 0


def test_one_worker() -> None:
    progress = Progress(average="gradients")
    for iteration in range(1, 20):
        before = (2.0,) * min(iteration - 1, 3)
        progress.report(single(iteration, aggregate=4.0, gradients=1.0, contributors=1.0, products=before))
    assert progress.signal == pytest.approx(2 / PRIOR_RHO)
    assert progress.alignment[1] == pytest.approx(PRIOR_RHO)
    np.testing.assert_allclose(progress.worth(prediction([1.0], [[1.0]])), [1 / (1 + progress.noise_scale)])


@pytest.mark.parametrize("product", [0.0, -2.0, -1e100])
def test_directions_that_are_gone_or_turned_are_worth_the_least(product: float) -> None:
    progress = Progress(average="gradients")
    for iteration in range(1, 200):
        for _ in range(2):
            progress.report(single(iteration, aggregate=3.0, products=(product,) * LAGS))
    assert (progress.alignment[1:] <= 0.06).all() and (progress.alignment >= -1).all()
    old = progress.worth(prediction([2.0, 2.0], [[0.0, 1.0], [1.0]]))
    assert old[1] * RHO_MIN**2 <= old[0] * (1 + 1e-9) <= old[1] * 0.06**2


def test_noise_that_hides_the_signal_is_bounded() -> None:
    progress = Progress(average="gradients")
    for iteration in range(1, 50):
        for _ in range(4):
            progress.report(single(iteration, aggregate=0.5, gradients=4.0))
    assert progress.signal == SIGNAL_MIN * 4
    assert progress.noise_scale == pytest.approx(1 / SIGNAL_MIN - 1)


def test_who_gave_up_has_no_gradient_anywhere() -> None:
    progress, other = (Progress(average="gradients") for _ in range(2))
    for iteration in range(1, 20):
        for _ in range(2):
            progress.report(single(iteration))
            other.report(single(iteration))
        other.report(single(iteration, gradient=0.0))
    assert (progress.signal, progress.noise_scale) == (other.signal, other.noise_scale)
    assert 0 < progress.signal < 4


def test_the_order_within_an_iteration_does_not_matter() -> None:
    found = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        progress = Progress(average="gradients")
        for iteration in range(1, 40):
            for rank in order:
                progress.report(single(iteration, gradient=3.0 + rank, aggregate=2.0, products=(1.0,)))
        found.append((progress.signal, progress.noise_scale, *progress.alignment))
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=0.02)


def test_who_reports_long_after_the_others_is_not_taken_for_another_iteration() -> None:
    """One of three says ten, and another twenty iterations later what their aggregate was."""
    prompt, slow = (Progress(average="gradients") for _ in range(2))
    for iteration in range(1, 60):
        prompt.report(single(iteration))
        slow.report(single(iteration))
        for behind in (10, LAGS + 4):
            if iteration > behind:
                slow.report(single(iteration - behind, aggregate=1.5))
    assert slow.signal == pytest.approx(prompt.signal)
    assert slow._inverse.weight == prompt._inverse.weight


@pytest.mark.parametrize("average", AVERAGES)
def test_a_sum_is_taken_for_what_the_report_says_is_in_it(average: Average) -> None:
    """Of three workers one is late three times and then in: six gradients of three are in that sum, two of two before.

    Exact gradients without noise: an aggregate is as long as it has gradients for each that it is divided by.
    """
    progress, lengths = Progress(average=average), [1.0] * LAGS
    for iteration in range(1, 400):
        gradients, contributors = (6.0, 3.0) if iteration % 4 == 0 else (2.0, 2.0)
        length = 1.0 if average == "gradients" else gradients / contributors
        progress.report(
            single(
                iteration,
                gradient=1.0,
                aggregate=length**2,
                gradients=gradients,
                contributors=contributors,
                products=tuple(length * before for before in lengths[: iteration - 1]),
            )
        )
        lengths = [length, *lengths[:-1]]
    assert progress.signal == pytest.approx(1, rel=1e-3)
    assert progress.noise_scale == pytest.approx(0, abs=1e-3)
    np.testing.assert_allclose(progress.alignment, np.ones(LAGS + 1), atol=0.05)


def test_who_has_taken_a_peers_parameters_has_no_aggregate_to_tell() -> None:
    progress = Progress(average="gradients")
    progress.report(single(1, aggregate=0.0, gradients=0.0, contributors=0.0))
    assert progress.signal == 0
    progress.report(single(1, aggregate=3.0))
    assert progress.signal == pytest.approx(2)


NUMBERS = [(0.0, 0.0), (1.0, 1.0), (2.5, 1.5), (4.0, 4.0), (64 * 1023.0, 1.0)]
"""Of gradients and contributors."""

anything = st.builds(
    lambda numbers, **given: Report(gradients=numbers[0], contributors=numbers[1], **given),
    numbers=st.sampled_from(NUMBERS),
    iteration=st.integers(1, 60) | st.sampled_from([1, 1000, 2**32 - 1]),
    first_block_s=st.just(0.01),
    late=st.booleans(),
    gradient_norm2=st.sampled_from([0.0, 1.0, 4.0, 5e-324, 1e-200, 1e100]),
    aggregate_norm2=st.sampled_from([0.0, 1.0, 3.0, 5e-324, 1e100]),
    products=st.lists(st.sampled_from([0.0, 1.0, -1.0, 5e-324, 1e100, -1e100]), max_size=LAGS + 4).map(tuple),
)


@pytest.mark.filterwarnings("error")
@settings(deadline=None, max_examples=200)
@given(st.lists(anything, max_size=60), st.sampled_from(AVERAGES))
def test_whatever_comes_the_worth_is_a_number(taken: list[Report], average: Average) -> None:
    progress = Progress(average=average)
    for report in taken:
        progress.report(report)
    spread = [[1 / (LAGS + 1)] * (LAGS + 1)] * 4
    for predicted in (prediction([1.0, 2.0, 3.0, 4.0], [[1.0]] * 4), prediction([4.0] * 4, spread)):
        worth = progress.worth(predicted)
        assert np.isfinite(worth).all()
        assert (worth > 0).all()
    assert np.isfinite(progress.alignment).all()
    assert 0 <= progress.noise_scale <= 1 / SIGNAL_MIN


def test_memory_is_bounded() -> None:
    random = np.random.default_rng(1)
    progress = Progress(average="gradients")
    base = 1
    for _ in range(100_000):
        base += int(random.choice([0, 0, 0, 1, 50], p=[0.5, 0.2, 0.2, 0.0999, 0.0001]))
        iteration = max(1, base - int(random.integers(0, 6)))
        progress.report(single(iteration))
    assert len(progress._steps) <= LAGS


def test_a_mean_forgets_and_knows_what_it_has_not_heard_of() -> None:
    mean = Mean()
    assert mean.value == 0
    mean.add(2.0)
    mean.add(4.0)
    assert 3 < mean.value < 3.05
    products = Products()
    products.add(np.array([2.0, np.nan]))
    products.add(np.array([4.0, np.nan, 1.0]))
    np.testing.assert_allclose(products.total[:4] / np.maximum(products.weight[:4], 1e-9), [mean.value, 0, 1, 0])
    np.testing.assert_array_equal(products.weight[[1, 3]], 0)
