"""The sums of iterations: the numbers and ages of their gradients, and their progress by a model of learning.

**Model.** An iteration whose sum has m gradients of mean age a makes the progress exp(-2 a / L) / (1 + phi / m), in
units of an iteration with exact and fresh gradients. phi is the gradient noise scale in units of a worker's batch
(McCandlish et al., An empirical model of large-batch training, 2018). m is the effective number (sum w)^2 / sum w^2 of
gradients of weight w. L is the correlation length of gradients, in iterations. 2 a / L is the cost of age, as in
controller/kofn_controller/policy/worth.py.

**Validity.** phi and L are constant, as in one phase of a training whose learning rate suits the size of the sum. The
law of phi is McCandlish's; the law of age was fitted to trainings of 4 to 16 workers with mean ages below L. All
workers have data of the same distribution.
"""

from dataclasses import dataclass, field

import numpy as np

from kofn.sim.scale.fleet import Ended
from kofn_common.config.late_rules import LatePolicy, LateRule
from kofn_common.config.scale import ScaleSection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.rpc.limits import LAGS
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.policy.prediction import weights_of
from kofn_controller.policy.process import AGES
from kofn_controller.policy.worth import AGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """An iteration's sum; arrays are (seeds,)."""

    gradients: FloatArray  # the number of gradients
    effective: FloatArray  # the effective number of gradients, (sum w)^2 / sum w^2
    age: FloatArray  # the gradients' mean age, weighted, in iterations

    def progress(self, model: ScaleSection) -> FloatArray:
        """Return the progress of the iteration (seeds,)."""
        fresh = np.exp(-AGE * self.age / model.correlation)
        return np.asarray(
            np.where(self.effective > 0, fresh / (1 + model.noise_scale / np.maximum(self.effective, 1e-9)), 0.0)
        )


@dataclass(slots=True, kw_only=True)
class OpenSums:
    """The gradients that wait for a sum; arrays are (seeds, workers)."""

    shape: tuple[int, int]
    _stashed: FloatArray = field(init=False)  # numbers of stashed gradients
    _begun_in: FloatArray = field(init=False)  # sums of the iterations in which stashed gradients were begun

    def __post_init__(self) -> None:
        self._stashed, self._begun_in = np.zeros((2, *self.shape))

    def add(self, ended: Ended, iteration: int, rule: LateRule, policy: LatePolicy) -> Sum:
        """Return an iteration's sum. All stashed gradients of a worker count with their mean age."""
        fresh = ended.included.sum(axis=1) + ended.more
        where = np.zeros(self.shape, np.bool_)
        ages: FloatArray = np.zeros(0)
        numbers: FloatArray = np.zeros(0)
        if rule.counts:
            late = ended.included & (ended.latest.begun_in < iteration)
            fresh, where = fresh - late.sum(axis=1), late | ended.old
            ages, numbers = (iteration - ended.latest.begun_in[where]).astype(np.float64), np.ones(int(where.sum()))
        elif rule.merges:
            where = ended.old
            ages, numbers = (iteration - ended.before.begun_in[where]).astype(np.float64), np.ones(int(where.sum()))
        elif rule.keeps:
            self._stashed[ended.old] += 1
            self._begun_in[ended.old] += ended.before.begun_in[ended.old]
            where = ended.included & (self._stashed > 0)
            numbers = self._stashed[where]
            ages = iteration - self._begun_in[where] / numbers
            self._stashed[where] = self._begun_in[where] = 0.0
        row = np.nonzero(where)[0]
        weights = numbers * weights_of(policy.age_weight)[np.minimum(ages, AGES).astype(np.int64)]

        def total(values: FloatArray) -> FloatArray:
            return np.bincount(row, values, minlength=len(fresh)).astype(np.float64)

        weight = fresh + total(weights)
        square = fresh + total(weights**2 / np.maximum(numbers, 1))
        return Sum(
            gradients=fresh + total(numbers),
            effective=weight**2 / np.maximum(square, 1e-9),
            age=total(weights * ages) / np.maximum(weight, 1e-9),
        )


def described(found: Sum, iteration: int, k: int, model: ScaleSection) -> pb.Report:
    """Return a report of an aggregate whose signal has the length 1, with the model's noise and correlation."""
    return pb.Report(
        iteration=iteration,
        gradient_norm2=1 + model.noise_scale,
        aggregate_norm2=1 + model.noise_scale / max(float(found.effective[0]), 1e-9),
        aggregate_products=[0.5 ** (lag / model.correlation) for lag in range(1, min(iteration - 1, LAGS) + 1)],
        gradients=float(found.effective[0]),
        contributors=float(k),
    )
