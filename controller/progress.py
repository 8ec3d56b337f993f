"""What an iteration with k workers is worth, measured from the gradients' norms and products. No clock, no I/O.

A step along a direction that has cosine c with the present gradient brings c^2 of what the gradient itself would (at
the best step size, to second order). Two things turn an iteration's aggregate away from the gradient:

- noise: each of its gradients is from one batch. With the noise scale phi = S / |G|^2, S the summed variance of one
  worker's gradient (McCandlish et al. 2018), c^2 = 1 / (1 + phi / m) for m gradients;
- age: some were begun d iterations ago, and the gradient has turned since. rho(d), the mean product of gradients d
  iterations apart over their squared length, is what is left: c^2 = (mean of rho over the m gradients)^2.

And a sum of fewer gradients is a smaller step where each has the same weight. So an iteration's worth is
step x (mean rho)^2 / (1 + phi / m): 1 for exact and fresh gradients of all workers.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from controller.carryover import LAGS, Prediction
from controller.measure import FloatArray, Report

MEMORY = 64
"""Iterations after which a measured product counts for 1 / e."""

PRIOR = 4.0
"""Iterations' weight of what is taken for granted before anything is measured: rho(d) = PRIOR_RHO ** d."""

PRIOR_RHO = 0.95

SETTLED = 2
"""Iterations after which everyone who was in one has reported it."""

SIGNAL_MIN = 0.02
"""Least share of one gradient's squared length that is signal: it cannot be told from noise below."""

ALONE = 0.9
"""Mean of 1 / m above which there is hardly more than one gradient in a sum, and nothing to compare it with but the
sum of the iteration before."""

RHO_MIN = 0.05
"""Least mean rho: below it nothing is known but that it is bad."""

DECAY = math.exp(-1 / MEMORY)


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
class Seen:
    """One iteration's aggregate, as far as it is known."""

    report: Report
    members: int = 0
    gradients: int = 0  # in its sum: the members' and what they had stashed


@dataclass(slots=True, kw_only=True)
class Progress:
    """Running means over iterations, each in units of one exact gradient.

    `divisor`: what sums are divided by, 0: by their members; `stashes`: late gradients are in a later sum. Remembers a
    few iterations, and a number for each worker.
    """

    divisor: int
    stashes: bool
    _gradient: Mean = field(default_factory=Mean)  # |g|^2 of a single one
    _aggregate: Mean = field(default_factory=Mean)  # |G|^2 + S / m
    _inverse: Mean = field(default_factory=Mean)  # 1 / m
    _products: Products = field(default_factory=Products)
    _open: dict[int, Seen] = field(default_factory=dict)  # by iteration; not everyone has reported these
    _steps: dict[int, float] = field(default_factory=dict)  # of the latest iterations: the weights of all gradients
    _stashed: dict[int, int] = field(default_factory=dict)  # late gradients of each worker

    def report(self, rank: int, report: Report) -> None:
        """Take what a worker says of an iteration for which it computed a gradient."""
        if not report.gradient_norm2:
            return
        self._gradient.take(report.gradient_norm2)
        if report.late:
            self._stashed[rank] = self._stashed.get(rank, 0) + self.stashes
            return
        gradients = 1 + self._stashed.pop(rank, 0)
        if self._is_settled(report.iteration):
            return
        seen = self._open.setdefault(report.iteration, Seen(report=report))
        seen.members += 1
        seen.gradients += gradients
        for iteration in sorted(known for known in self._open if known < report.iteration - SETTLED):
            self._settle(self._open.pop(iteration))

    def weights(self, workers: int) -> FloatArray:
        """Of one gradient in an aggregate of k = 1..workers (workers,)."""
        return np.full(workers, 1 / self.divisor) if self.divisor else 1 / np.arange(1.0, workers + 1)

    def worth(self, prediction: Prediction) -> FloatArray:
        """Of an iteration for k = 1..n (n,)."""
        aligned = np.maximum(prediction.delays @ self.alignment, RHO_MIN)
        step = prediction.gradients * self.weights(prediction.workers)
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
        """This one has been counted: whoever says only now that it was in comes too late."""
        return iteration in self._steps or iteration < min(self._steps, default=0)

    def _settle(self, seen: Seen) -> None:
        """Everyone who was in this iteration has said so."""
        iteration, products = seen.report.iteration, np.asarray(seen.report.products[:LAGS])
        step = seen.gradients / (self.divisor or seen.members)
        self._gradient.forget()
        self._aggregate.add(seen.report.aggregate_norm2 / step**2)
        self._inverse.add(1 / seen.gradients)
        before = [self._steps.get(iteration - lag, math.nan) for lag in range(1, len(products) + 1)]
        self._products.add(products / (step * np.asarray(before)))
        self._steps[iteration] = step
        if len(self._steps) > LAGS:
            del self._steps[next(iter(self._steps))]
