"""What an iteration with k workers is worth, measured from the gradients' norms and products. No clock, no I/O.

A step along a direction that has cosine c with the present gradient brings c^2 of what the gradient itself would (at
the best step size, to second order). Two things turn an iteration's aggregate away from the gradient:

- noise: each of its gradients is from one batch. With the noise scale phi = S / |G|^2, S the summed variance of one
  worker's gradient (McCandlish et al. 2018), c^2 = 1 / (1 + phi / m) for m gradients;
- age: some were begun d iterations ago, and the gradient has turned since. rho(d), the mean product of gradients d
  iterations apart over their squared length, is what is left: c^2 = (mean of rho over the m gradients)^2.

And a sum that is divided by its contributors (model.average) is a larger step than the mean of its gradients where late
ones are in it: step = gradients / contributors, and 1 for the mean. So an iteration's worth is
step x (mean rho)^2 / (1 + phi / m): 1 for the mean of exact and fresh gradients.
"""

import math
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from controller.prediction import Prediction
from controller.process import LAGS
from controller.measure import FloatArray, Report
from run.config import Average

MEMORY = 64
"""Iterations after which a measured product counts for 1 / e."""

PRIOR = 4.0
"""Iterations' weight of what is taken for granted before anything is measured: rho(d) = PRIOR_RHO ** d."""

PRIOR_RHO = 0.95

SIGNAL_MIN = 0.02
"""Least share of one gradient's squared length that is signal: it cannot be told from noise below."""

ALONE = 0.9
"""Mean of 1 / m above which there is hardly more than one gradient in a sum, and nothing to compare it with but the
sum of the iteration before."""

RHO_MIN = 0.05
"""Least mean rho: below it nothing is known but that it is bad."""

DECAY = math.exp(-1 / MEMORY)

T = TypeVar("T", float, FloatArray)


@dataclass(slots=True)
class Mean:
    """A mean that forgets exponentially, iteration by iteration."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """An iteration's."""
        self.forget()
        self.take(value)

    def take(self, value: float) -> None:
        """One more of the present iteration."""
        self.total += value
        self.weight += 1

    def forget(self) -> None:
        """The next iteration begins."""
        self.total *= DECAY
        self.weight *= DECAY

    @property
    def value(self) -> float:
        """0 while nothing is known."""
        return self.total / self.weight if self.weight else 0.0


@dataclass(slots=True)
class Products:
    """Sums and weights, for lags 1..LAGS (LAGS,), of which older iterations' are forgotten likewise."""

    total: FloatArray = field(default_factory=lambda: np.zeros(LAGS))
    weight: FloatArray = field(default_factory=lambda: np.zeros(LAGS))

    def add(self, values: FloatArray) -> None:
        """An iteration's: as many as there are, NaN for what is not known."""
        known = np.isfinite(values)
        self.total *= DECAY
        self.weight *= DECAY
        self.total[: len(values)] += np.where(known, values, 0.0)
        self.weight[: len(values)] += known


@dataclass(slots=True, kw_only=True)
class Progress:
    """Running means over iterations, each in units of one exact gradient. `average`: as model.average.

    The first report of an iteration says what its aggregate is, as all replicas apply the same.
    """

    average: Average
    _gradient: Mean = field(default_factory=Mean)  # |g|^2 of a single one
    _aggregate: Mean = field(default_factory=Mean)  # |G|^2 + S / m
    _inverse: Mean = field(default_factory=Mean)  # 1 / m
    _products: Products = field(default_factory=Products)
    _steps: dict[int, float] = field(default_factory=dict)  # of the latest iterations: length over the mean's

    def report(self, report: Report) -> None:
        """Take what a worker says of an iteration: of the gradient and of the aggregate, where it had them."""
        if report.gradient_norm2:
            self._gradient.take(report.gradient_norm2)
        if report.gradients and not self._is_settled(report.iteration):
            self._settle(report)

    def worth(self, prediction: Prediction) -> FloatArray:
        """Of an iteration for k = 1..n (n,)."""
        aligned = np.maximum(prediction.delays @ self.alignment, RHO_MIN)
        step = self._step(prediction.gradients, np.arange(1.0, prediction.workers + 1))
        return np.asarray(step * aligned**2 / (1 + self.noise_scale / prediction.gradients))

    @property
    def signal(self) -> float:
        """|G|^2: the squared length of a gradient without noise; 0 while nothing is known."""
        single, inverse = self._gradient.value, self._inverse.value
        if not inverse:
            return 0.0
        if inverse > ALONE and not self._products.weight[0]:
            return single
        if inverse > ALONE:
            signal = self._products.total[0] / self._products.weight[0] / PRIOR_RHO
        else:
            signal = (self._aggregate.value - inverse * single) / (1 - inverse)
        return float(np.clip(signal, SIGNAL_MIN * single, single))

    @property
    def noise_scale(self) -> float:
        """phi in units of a worker's batch; 0 while nothing is known."""
        signal = self.signal
        return self._gradient.value / signal - 1 if signal else 0.0

    @property
    def alignment(self) -> FloatArray:
        """rho(0..LAGS) (LAGS + 1,), from -1 to 1."""
        prior = PRIOR_RHO ** np.arange(LAGS + 1)
        signal = self.signal
        if not signal:
            return np.asarray(prior)
        with np.errstate(over="ignore"):
            measured = (self._products.total / signal + PRIOR * prior[1:]) / (self._products.weight + PRIOR)
        return np.append(1.0, np.clip(measured, -1.0, 1.0))

    def _is_settled(self, iteration: int) -> bool:
        """This one has been counted."""
        return iteration in self._steps or iteration < min(self._steps, default=0)

    def _settle(self, report: Report) -> None:
        """The first report of an iteration."""
        iteration, products = report.iteration, np.asarray(report.products[:LAGS])
        step = self._step(report.gradients, report.contributors)
        self._gradient.forget()
        self._aggregate.add(report.aggregate_norm2 / step**2)
        self._inverse.add(1 / report.gradients)
        before = [self._steps.get(iteration - lag, math.nan) for lag in range(1, len(products) + 1)]
        self._products.add(products / (step * np.asarray(before)))
        self._steps[iteration] = step
        if len(self._steps) > LAGS:
            del self._steps[next(iter(self._steps))]

    def _step(self, gradients: T, contributors: T) -> T:
        """How long an aggregate is as a multiple of its gradients' mean."""
        return gradients / (gradients if self.average == "gradients" else contributors)
