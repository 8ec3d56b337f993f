"""Predicts the process under each rule for every k: iteration times, sums, ages, shares.

The process (`process`) is simulated with draws from the estimate (`draws`), the same for every k and rule. Its times
correct E_k[T] of the estimate's law. It is simulated again only when the estimate has changed. The module knows nothing
of the worth of an iteration.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kofn_common.config.late_rules import RuleName, weight_at
from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.policy.draws import MANY, Draws, draw
from kofn_controller.policy.process import AGES, CARRIED, Beyond, IntArray, Process, carried, simulate

KS = 16
"""Maximum number of simulated ks; results for other ks are interpolated."""

CHANGED = 0.05
"""The process is simulated again when an E_k[T], 1 + tau, or 1 + a time in `Beyond`, all in units of s, has changed by
more than this share."""


def weights_of(age_weight: float) -> FloatArray:
    """Return the weights (AGES + 1,) of gradients that are 0, 1, 2, ... iterations old."""
    return np.array([weight_at(age, age_weight) for age in range(AGES + 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The share of each of n workers in all summed gradients, for k = 1..n."""

    ks: IntArray  # the simulated ks
    by_age: FloatArray  # (ks, m, AGES + 1) share of each worker that a representative stands for, by age
    stands: IntArray  # (n,) the representative of each worker

    def least(self, age_weight: float = 1.0, among: BoolArray | None = None) -> FloatArray:
        """Return the least share of a worker for k = 1..n (n,), as a multiple of an equal share; 0 if the worker is in
        no sum.

        `age_weight`: the factor of a gradient for each iteration of age. `among` (n,): the workers that count; None:
        all.
        """
        n = len(self.stands)
        weight = (self.by_age @ weights_of(age_weight))[:, self.stands]
        share = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        chosen = share if among is None else share[:, among]
        return np.asarray(np.interp(np.arange(1, n + 1), self.ks, n * chosen.min(axis=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The ages of the gradients in a sum, for k = 1..n."""

    ks: IntArray  # the simulated ks
    by_age: FloatArray  # (ks, AGES + 1) shares of the gradients that are 0, 1, 2, ... iterations old
    n: int

    def weighted(self, weights: FloatArray) -> FloatArray:
        """Return the mean over the gradients in a sum of `weights` by age (AGES + 1,), for k = 1..n (n,)."""
        return np.interp(np.arange(1, self.n + 1), self.ks, self.by_age @ weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted process for k = 1..n."""

    mean_s: FloatArray  # (n,) mean time to the gradient that ends an iteration
    error_s: FloatArray  # (n,) standard error of mean_s
    gradients: FloatArray  # (n,) mean number of gradients in a sum
    delays: Delays
    shares: Shares

    @property
    def workers(self) -> int:
        return len(self.mean_s)


class InSums(NamedTuple):
    """The fields of Prediction that describe a sum."""

    gradients: FloatArray
    delays: Delays
    shares: Shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The draws of one simulation, and the results of each rule on demand. All times are in units of s."""

    known: FloatArray  # the values that `_changed` compares
    n: int
    law: str
    draws: Draws
    ks: IntArray
    beyond: Beyond
    found: dict[RuleName, Process] = field(default_factory=dict)
    sums: dict[RuleName, InSums] = field(default_factory=dict)

    def sums_of(self, rule: RuleName) -> InSums:
        """Return the sums under a rule."""
        if rule not in self.sums:
            self.sums[rule] = _sums(self, rule)
        return self.sums[rule]

    def of(self, rule: RuleName) -> Process:
        """Return the process under a rule."""
        if rule not in self.found:
            times, given = self.draws.times, {"phase": self.draws.phase, "sizes": self.draws.sizes}
            if rule in CARRIED:
                self.found.update(carried(times, self.ks, self.beyond, **given))
            else:
                self.found[rule] = simulate(rule, times, self.ks, self.beyond, **given)
        return self.found[rule]


@dataclass(slots=True, kw_only=True)
class Predictor:
    """Predicts the process, and keeps the last simulation while the estimate hardly changes."""

    simulations: int = 0
    _last: Simulated | None = None

    def predict(
        self, estimate: Estimate, live: BoolArray, base_s: FloatArray, beyond_s: Beyond, rule: RuleName
    ) -> Prediction:
        """Predict the process for k = 1..n of the n workers in the mask `live` (workers,).

        `base_s` (n,) is E_k[T] of the estimate's law (`law_times`), `beyond_s` the times beyond first blocks, seconds.
        E_k[T] is the exact time under `abort`. For another rule, the simulation adds the difference between the rule
        and `abort` with the same draws. So the prediction is exact under `abort`, and for k = n under all rules but
        `batch-sync`.
        """
        unit_s = max(estimate.service_s, estimate.event_s)  # s, or tau if s is 0
        units = Beyond(*(spent_s / unit_s for spent_s in beyond_s))
        n = len(base_s)
        first = 1 if n <= MANY else n / KS  # a representative stands for more workers than a smaller k
        ks = np.unique(np.linspace(first, n, min(n, KS)).round().astype(np.int64))
        others = 1 + estimate.event_s / unit_s, 1 + units.overhead, 1 + units.catch_up
        known = np.append(base_s[ks - 1] / unit_s, others)
        last = self._last
        if last is None or (n, estimate.law) != (last.n, last.law) or _changed(known, last.known):
            draws = draw(estimate, live, unit_s)
            last = Simulated(known=known, n=n, law=estimate.law, draws=draws, ks=ks, beyond=units)
            self._last = last
            self.simulations += 1
        return _prediction(last, rule, base_s, unit_s)


def _changed(known: FloatArray, before: FloatArray) -> bool:
    """Return whether these positive values differ from the values of the last simulation.

    The values include E_k[T] of the simulated ks, which depends on the live workers and their speeds.
    """
    return bool(np.any(np.abs(known - before) > CHANGED * before))


def _prediction(last: Simulated, rule: RuleName, base_s: FloatArray, unit_s: float) -> Prediction:
    """Interpolate the prediction for all ks from the simulated ks."""
    process, alone = last.of(rule), last.of("abort")
    ks, all_ks = last.ks, np.arange(1, len(base_s) + 1)
    longer = process.length - alone.length  # (ks, chains)
    added, error = longer.mean(axis=1), longer.std(axis=1, ddof=1) / np.sqrt(longer.shape[1])
    timed = ks
    if len(base_s) > MANY:  # extrapolate to k = 0, where the rules add nothing, and async takes no time at all
        nothing = -float(base_s[0]) / unit_s if rule == "async" else 0.0
        timed, added, error = np.append(0, ks), np.append(nothing, added), np.append(0.0, error)
    sums = last.sums_of(rule)
    return Prediction(
        mean_s=np.maximum(base_s + unit_s * np.interp(all_ks, timed, added), 0.0),
        error_s=unit_s * np.interp(all_ks, timed, error),
        gradients=sums.gradients,
        delays=sums.delays,
        shares=sums.shares,
    )


def _sums(last: Simulated, rule: RuleName) -> InSums:
    """Return the gradients of an iteration's sum for k = 1..n, interpolated from the simulated ks."""
    counts, ks, sizes, all_ks = last.of(rule).counts, last.ks, last.draws.sizes, np.arange(1, last.n + 1)
    gradients = counts.sum(axis=(1, 2))
    delays = counts.sum(axis=1) / gradients[:, None]
    return InSums(
        gradients=np.interp(all_ks, ks, gradients),
        delays=Delays(ks=ks, by_age=delays, n=last.n),
        shares=Shares(ks=ks, by_age=counts / gradients[:, None, None] / sizes[:, None], stands=last.draws.stands),
    )
