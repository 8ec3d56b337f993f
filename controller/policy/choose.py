"""The k that minimises an objective; E_k[T]: the expected time until the fastest k of n workers are done.

P(T_i <= t) is the model's; the number of workers done by t is Poisson-binomial; E_k[T] = integral of P(fewer than k
done by t) dt. All times lie on the lattice s + tau * m, so the integral is a sum over m. Exact by dynamic programming
over the workers; above GROUP_ABOVE workers those of nearly the same lambda are given their mean (`grouped`).
Pure functions; knows nothing of time, gRPC or the switch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kofn.config.errors import ConfigError
from kofn.config.late_rules import RuleName, Treatment
from kofn.config.objectives import OBJECTIVES, check_objective
from kofn.config.plugins import in_words
from kofn.controller.estimate.curves import Curves
from kofn.controller.estimate.grouped import Counts, by_value, grouped_counts, grouped_done
from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.controller.estimate.model import Estimate
from kofn.controller.estimate.poisson import farthest, poisson_done
from kofn.controller.policy.history import TrainingHistory
from kofn.controller.policy.plugin import guarded
from kofn.controller.policy.policy import Policy

GROUP_ABOVE = 64
"""Most workers for which every one's own lambda is used."""

DENSE = 128
"""Lattice points from 0 on that are all evaluated; later ones are COARSE evenly spaced ones, interpolated between."""

COARSE = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """All that an objective or a policy may look at, for k = 1..n live workers (n,).

    `treatment`: of late gradients, under which all this is so. `expected_s` is E_k[T] in seconds, as if all workers
    started together; `predicted_s` the same for the process, where they do not (`process`); both end with the gradient
    that completes the k, and `overhead_s` follows: transfer, sum and step. `worth` is what an iteration brings, 1 for
    the mean of exact and fresh gradients (`progress`). `history`: what has happened; None where nothing is known of it.
    """

    expected_s: FloatArray
    predicted_s: FloatArray
    overhead_s: float
    worth: FloatArray
    treatment: Treatment = field(default_factory=Treatment)
    history: TrainingHistory | None = None

    @property
    def workers(self) -> int:
        return len(self.expected_s)

    @property
    def ks(self) -> FloatArray:
        """1..n, beside `expected_s`."""
        return np.arange(1, self.workers + 1, dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A name and the costs (n,) of k = 1..n that it minimises."""

    name: str
    costs: Callable[[Forecast], FloatArray]
    unit: str  # of the costs, for people: "s" or "" where they have none
    rule: RuleName | None = None  # for late gradients, where it leaves no choice
    treatments: tuple[Treatment, ...] = ()  # of late gradients among which it chooses; none: as the configuration says
    warm_up: int = 0  # iterations before the first choice
    policy: Callable[[], Policy] | None = None  # makes what chooses in place of costs

    def all_costs(self, forecasts: Sequence[Forecast]) -> FloatArray:
        """Of several forecasts (forecasts, n)."""
        return np.stack([self.costs(forecast) for forecast in forecasts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The k and the treatment of late gradients to use, and the numbers behind them.

    `best` and `best_treatment` are the cheapest option. They differ from `k` and `treatment` where the gain is within
    the margin or not sure. `forecasts` and `all_costs` cover every treatment; `forecast` and `costs` the one in use.
    """

    k: int
    treatment: Treatment
    best: int
    best_treatment: Treatment
    forecasts: tuple[Forecast, ...]
    all_costs: FloatArray  # (treatments, n)
    gain: float = 0.0  # of `best` over the k that was in force: a share of its cost
    gain_error: float = 0.0  # its standard error; 0 where it was not asked for

    @property
    def treatments(self) -> list[Treatment]:
        """Of `forecasts`."""
        return [forecast.treatment for forecast in self.forecasts]

    @property
    def place(self) -> int:
        """Of the treatment to use among `forecasts`."""
        return self.treatments.index(self.treatment)

    def place_of(self, treatment: Treatment, k: int) -> tuple[int, int] | None:
        """Where an option is among `all_costs`; None: it is no option."""
        if treatment not in self.treatments or not 1 <= k <= self.all_costs.shape[1]:
            return None
        return self.treatments.index(treatment), k - 1

    @property
    def forecast(self) -> Forecast:
        """Under the treatment to use."""
        return self.forecasts[self.place]

    @property
    def costs(self) -> FloatArray:
        """Of k = 1..n under it (n,)."""
        return np.asarray(self.all_costs[self.place])


def objective(text: str, workers: int) -> Objective:
    """The one of this name; ConfigError where there is none, or where a plug-in does not load."""
    fixed = check_objective(text, workers, "objective")
    if fixed is not None:
        return Objective(name=text, costs=lambda forecast: np.abs(forecast.ks - fixed.k), unit="", rule=fixed.rule)
    found = OBJECTIVES.load(text)
    if isinstance(found, type) and issubclass(found, Policy):
        return Objective(
            name=text, costs=lambda forecast: 0 * forecast.ks, unit="", policy=_maker(text, found, workers)
        )
    if not isinstance(found, Objective):
        found = Objective(name=text, costs=found, unit="")
    if text in OBJECTIVES.built_in:
        return found
    return replace(found, name=text, costs=guarded(OBJECTIVES.called(text), found.costs))


def _maker(text: str, kind: type[Policy], workers: int) -> Callable[[], Policy]:
    """ConfigError, now, where none can be made."""
    try:
        kind(workers)
    except Exception as error:  # whatever a foreign class does
        raise ConfigError(f"{OBJECTIVES.called(text)} failed: {in_words(error)}") from error
    return partial(kind, workers)


GAIN_MAX = 1e6
"""A gain is no larger than this, whatever an objective's costs are."""


def gains(costs: FloatArray, present: float) -> FloatArray:
    """The share of the present cost that each of others saves, same shape; negative where it costs more."""
    with np.errstate(over="ignore"):
        saved = (present - costs) / max(abs(present), 1e-300)
    return np.clip(saved, -GAIN_MAX, GAIN_MAX)


def expected_times(estimate: Estimate, live: BoolArray) -> FloatArray:
    """E_k[T] in seconds for k = 1..n of the n live workers (`live` masks the estimate's), as the source has it.

    Poisson's, but for workers with a curve of their own; whether that holds is the estimate's `law`.
    """
    rates, curves, own = _workers(estimate, live)
    points, weights = lattice(max(float(rates.max(initial=0.0)), float(curves.longest.max(initial=0.0))))
    if len(rates) > GROUP_ABOVE:
        counts = grouped_counts(*_grouped_done(rates[~own], curves, points), weights)
    else:
        counts = np.cumsum(each_number(done_by(estimate, live, points))[:-1] @ weights)
    return estimate.service_s + estimate.event_s * counts


def done_by(estimate: Estimate, live: BoolArray, points: FloatArray) -> FloatArray:
    """P(T_i <= s + tau * m) of the live workers at ascending whole `points` m (n, points)."""
    rates, curves, own = _workers(estimate, live)
    done = np.empty((len(rates), len(points)))
    done[~own], done[own] = poisson_done(points, rates[~own]), curves.done(points)
    return done


def _workers(estimate: Estimate, live: BoolArray) -> tuple[FloatArray, Curves, BoolArray]:
    """Rates of the live (n,), the curves of those that have one, and which these are (n,)."""
    curves = estimate.curves.at(live[estimate.curves.rank])
    return estimate.lambda_s[live] / estimate.event_s, curves, np.isin(np.flatnonzero(live), curves.rank)


def _grouped_done(rates: FloatArray, curves: Curves, points: FloatArray) -> tuple[FloatArray, Counts]:
    """P(done by a point) (groups, points) of Poisson workers and of others, and the groups' sizes."""
    poisson, own = by_value(rates), by_value(curves.rate)
    done = np.concatenate((grouped_done(poisson, points), curves.done(points, own)))
    return done, np.concatenate((poisson.sizes, own.sizes))


def expected_counts(rates: FloatArray) -> FloatArray:
    """E of the k-th smallest of independent Poisson(rates[i]), k = 1..n (n,); grouped above GROUP_ABOVE."""
    points, weights = lattice(float(rates.max(initial=0.0)))
    if len(rates) > GROUP_ABOVE:
        groups = by_value(rates)
        return grouped_counts(grouped_done(groups, points), groups.sizes, weights)
    return np.cumsum(each_number(poisson_done(points, rates))[:-1] @ weights)


def expected_counts_of(rates: FloatArray) -> FloatArray:
    """`expected_counts` of each of several sets of workers, (sets, n) for `rates` (sets, n), on one lattice."""
    sets, n = rates.shape
    if n > GROUP_ABOVE:
        return np.array([expected_counts(each) for each in rates])
    points, weights = lattice(float(rates.max(initial=0.0)))
    done = poisson_done(points, rates.T.ravel()).reshape(n, -1)
    return (np.cumsum(each_number(done)[:-1], axis=0).reshape(n, sets, -1) @ weights).T


def lattice(most: float) -> tuple[FloatArray, FloatArray]:
    """Points m and weights w, so that w @ f(m) is the sum of f over 0, 1, ... for f that is linear between points.

    Every m up to DENSE is a point, so small means are exact; beyond, f is smooth on the scale of the spacing.
    """
    end = farthest(most)
    points = np.arange(min(end, DENSE) + 1, dtype=np.float64)
    if end > DENSE:
        coarse = np.unique(np.linspace(DENSE, end, min(COARSE, end - DENSE) + 1).astype(np.int64))
        points = np.concatenate((points, coarse[1:].astype(np.float64)))
    gaps = np.diff(points)
    weights = np.zeros_like(points)
    weights[:-1] += (gaps + 1) / 2
    weights[1:] += (gaps - 1) / 2
    return points, weights


def each_number(done: FloatArray) -> FloatArray:
    """P(exactly j of the workers are done) (n + 1, points) from P(worker i is done) (n, points)."""
    exactly = np.zeros((len(done) + 1, done.shape[1]))
    exactly[0] = 1.0
    for i, p in enumerate(done):
        moved = exactly[: i + 1] * p
        exactly[: i + 1] -= moved
        exactly[1 : i + 2] += moved
    return exactly
