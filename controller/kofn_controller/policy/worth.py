"""Computes the worth of an iteration under a policy for late gradients and a k, from measurements. No clock, no I/O.

The number N of iterations of a training grows with the age of the gradients in its sums, and with their noise:

    log N = const + AGE * a / L + NOISE * min(phi, NOISE_MAX) / L * n / m - own

and DIVERGENCE more where AGE * a / L > DIVERGES.

- a: mean age of the gradients in a sum, by weight; m: their effective number, (sum w)^2 / sum w^2; n: the
  number of workers;
- L, phi: correlation length and noise scale (`correlation`). Both penalties are divided by L, because a small learning
  rate averages over many iterations, so that neither the age nor the noise of a single iteration matters much;
- own: if the data of some workers differs from the others' (`data_skew`), half of log(n x the least share of such a
  worker in the sums): a step without a part of the data is worth less.

The worth of an iteration is 1 / N without the constant. If a sum with late gradients is divided by its contributors
(model.average), the step is longer than the mean of its gradients, and worth more in proportion.

The constants come from simulations of all rules with training on digits (docs/explanation/control.md). There the cost
of noise depends on the share of all gradients in a sum, not on their number: sums of half of the gradients cost as much
with 4 workers as with 16.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from kofn_common.config.model import Average
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.limits import LAGS
from kofn_controller.estimate.correlation import Correlation
from kofn_controller.estimate.data_skew import DataSkew
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.policy.prediction import Prediction, weights_of
from kofn_controller.policy.process import AGES

AGE = 2.0
"""Weight of the age: an age of half a correlation length costs a factor e."""

NOISE = 0.3

NOISE_MAX = 3.0
"""Upper bound of phi in the formula, because large values are measured only roughly late in a training."""

DIVERGES = 2.0
"""AGE * a / L above which a training may diverge."""

DIVERGENCE = 3.0
"""Addition to log N above DIVERGES."""

NEEDED_MAX = 300.0
"""Upper bound of log N: the worth stays above 0."""

LEAST_WEIGHT = 1e-12
"""Lower bound of a sum's weight: with an age weight of 0, late gradients have no weight."""

SHARE_MIN = 1e-3
"""Lower bound of a share, as a multiple of an equal share."""


@dataclass(slots=True, kw_only=True)
class WorthModel:
    """Measures the inputs of the worth in a training with `workers` workers, and computes it.

    Only the first report of an iteration describes its aggregate, because all replicas apply the same aggregate.
    """

    workers: int
    average: Average  # model.average
    correlation: Correlation = field(default_factory=Correlation)
    data_skew: DataSkew = field(init=False)
    _norms: deque[float] = field(init=False)  # |g|^2 of the latest single gradients
    _settled: int = 0  # the latest iteration whose aggregate is known

    def __post_init__(self) -> None:
        self.data_skew = DataSkew(workers=self.workers)
        self._norms = deque(maxlen=max(self.workers, 4))

    def report(self, rank: int, report: pb.Report) -> None:
        """Take a worker's measurements of its gradient and of the aggregate from a report, if it has them."""
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
        """Return the worth of an iteration (n,) for k = 1..n of the n workers in the mask `live` (workers,).

        The worth is 1 for the mean of all workers' exact and fresh gradients. `factor` multiplies the cost of age and
        noise.
        """
        weights = weights_of(age_weight)
        delays = prediction.delays
        total, square = (np.maximum(delays.weighted(each), LEAST_WEIGHT) for each in (weights, weights**2))
        gradients = prediction.gradients * total**2 / square
        age = delays.weighted(weights * np.arange(AGES + 1)) / total
        length = self.correlation.length
        turned = factor * AGE * age / length
        noise = factor * NOISE * min(self.noise_scale, NOISE_MAX) / length * prediction.workers
        needed = turned + noise / gradients + DIVERGENCE * (turned > DIVERGES)
        return np.asarray(
            np.exp(-np.minimum(needed, NEEDED_MAX))
            * self._step(prediction)
            * self._shared(prediction, live, age_weight)
        )

    @property
    def noise_scale(self) -> float:
        """phi, in units of a worker's batch."""
        return self.correlation.noise_scale

    @property
    def alignment(self) -> FloatArray:
        """The share of a gradient's direction that remains after 0, 1, 2, ... iterations (LAGS + 1,); 0 beyond the
        measured lags.
        """
        curve = self.correlation.curve
        return np.clip(np.append(curve, np.zeros(LAGS + 1 - len(curve))), -1.0, 1.0)

    def _step(self, prediction: Prediction) -> FloatArray:
        """Return the length of an aggregate as a multiple of the mean of its gradients (n,)."""
        ks = np.arange(1.0, prediction.workers + 1)
        return prediction.gradients / ks if self.average == "contributors" else np.ones(prediction.workers)

    def _shared(self, prediction: Prediction, live: BoolArray, age_weight: float) -> FloatArray:
        """Return the factor of the worth (n,) for skewed data: less than 1 if some of it is in few sums."""
        alone = self.data_skew.skewed[live]
        if not alone.any():
            return np.ones(prediction.workers)
        return np.asarray(np.sqrt(np.clip(prediction.shares.least(age_weight, alone), SHARE_MIN, 1.0)))
