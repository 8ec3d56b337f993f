"""The worth of an iteration under a rule for late gradients and a k, as measured. No clock, no I/O.

The number of iterations of a training grows with the age of the gradients in its sums, and with their noise:

    log N = const + AGE * a / L + NOISE * min(phi, NOISE_MAX) / L * n / m - own

and DIVERGENCE more where AGE * a / L > DIVERGES.

- a: mean age of the gradients in a sum, each by its weight; m: how many there are, (sum w)^2 / sum w^2, of n workers;
- L, phi: correlation length and noise scale (`correlation`). Both penalties are divided by L: a small learning rate
  averages over many iterations, so that neither the age nor the noise of one matters much; a large one does not;
- own: if some workers' data is their own (`data_skew`), half of log(n x the least share of the sums that one of them
  has): a step without a part of the data is worth less.

The worth of an iteration is 1 / N without the constant. A sum that is divided by its contributors (model.average) is a
longer step than the mean of its gradients where late ones are in it, and worth as much more.

The constants were found in simulations of all rules with training on digits (docs/explanation/control.md). The cost of
noise there depends on the share of all gradients in a sum, not on their number: half of them cost as much with 4
workers as with 16.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from kofn.config.schema import Average
from kofn.controller.estimate.correlation import Correlation
from kofn.controller.estimate.data_skew import DataSkew
from kofn.controller.estimate.measurements import BoolArray, FloatArray
from kofn.controller.policy.prediction import Prediction, weights_of
from kofn.controller.policy.process import AGES
from kofn.host.compression.alignment import LAGS
from kofn.rpc import kofn_pb2 as pb

AGE = 2.0
"""An age of half a correlation length costs a factor e."""

NOISE = 0.3

NOISE_MAX = 3.0
"""Upper bound of phi in the formula: late in a training phi is only known to be large."""

DIVERGES = 2.0
"""AGE * tau / L from which on a training may diverge ..."""

DIVERGENCE = 3.0
"""... and what that adds to log N."""

SHARE_MIN = 1e-3
"""Least multiple of an equal share that differs from none."""


@dataclass(slots=True, kw_only=True)
class WorthModel:
    """Measures the worth of iterations of a training with `workers` workers. `average`: as model.average.

    The first report of an iteration describes its aggregate, as all replicas apply the same.
    """

    workers: int
    average: Average
    correlation: Correlation = field(default_factory=Correlation)
    data_skew: DataSkew = field(init=False)
    _norms: deque[float] = field(init=False)  # |g|^2 of the latest single gradients
    _settled: int = 0  # the latest iteration whose aggregate is known

    def __post_init__(self) -> None:
        self.data_skew = DataSkew(workers=self.workers)
        self._norms = deque(maxlen=max(self.workers, 4))

    def report(self, rank: int, report: pb.Report) -> None:
        """Take what a worker says of an iteration: of the gradient and of the aggregate, where it had them."""
        if report.gradient_norm2:
            self._norms.append(report.gradient_norm2)
        if report.gradient_agreement:
            self.data_skew.add(rank, report.gradient_agreement)
        if report.gradients and report.iteration > self._settled:
            self._settled = report.iteration
            self.correlation.add(
                report.iteration,
                gradients=report.gradients,
                gradient_norm2=float(np.mean(self._norms)) if self._norms else 0.0,
                norm2=report.aggregate_norm2,
                products=tuple(report.aggregate_products),
            )

    def worth(self, prediction: Prediction, live: BoolArray, age_weight: float, factor: float = 1.0) -> FloatArray:
        """Return the worth of an iteration for k = 1..n of the n workers in the mask `live` (workers,), (n,).

        It is 1 for the mean of all workers' exact and fresh gradients. `factor` corrects the cost of age and noise.
        """
        weights = weights_of(age_weight)
        total, square = prediction.delays @ weights, prediction.delays @ weights**2
        gradients = prediction.gradients * total**2 / square
        age = prediction.delays @ (weights * np.arange(AGES + 1)) / total
        length = self.correlation.length
        turned = factor * AGE * age / length
        noise = factor * NOISE * min(self.noise_scale, NOISE_MAX) / length * prediction.workers
        needed = turned + noise / gradients + DIVERGENCE * (turned > DIVERGES)
        return np.asarray(np.exp(-needed) * self._step(prediction) * self._shared(prediction, live, age_weight))

    @property
    def noise_scale(self) -> float:
        """phi, in units of a worker's batch."""
        return self.correlation.noise_scale

    @property
    def alignment(self) -> FloatArray:
        """Return the share of a gradient's direction that remains after 0, 1, 2, ... iterations (LAGS + 1,); 0 beyond
        the known ones.
        """
        curve = self.correlation.curve
        return np.clip(np.append(curve, np.zeros(LAGS + 1 - len(curve))), -1.0, 1.0)

    def _step(self, prediction: Prediction) -> FloatArray:
        """How long an aggregate is as a multiple of its gradients' mean."""
        ks = np.arange(1.0, prediction.workers + 1)
        return prediction.gradients / ks if self.average == "contributors" else np.ones(prediction.workers)

    def _shared(self, prediction: Prediction, live: BoolArray, age_weight: float) -> FloatArray:
        """Return the share of progress that remains if some workers' data is in few sums."""
        alone = self.data_skew.skewed[live]
        if not alone.any():
            return np.ones(prediction.workers)
        return np.asarray(np.sqrt(np.clip(prediction.shares.least(age_weight, alone), SHARE_MIN, 1.0)))
