"""What is expected of the process under each rule, for every k: iteration times, sums, ages, shares.

The simulation (`process`) is repeated only when the estimate has changed; what it says is a correction of E_k[T], which
is always the present one. Knows nothing of what an iteration is worth.
"""

from dataclasses import dataclass, field

import numpy as np

from controller.draws import MANY, Draws, draw, law_times
from controller.measure import BoolArray, FloatArray
from controller.model import Estimate
from controller.process import CARRIED, IntArray, Process, Rule, carried, simulate

KS = 16
"""Most ks that are simulated; between them what is found is interpolated."""

CHANGED = 0.05
"""Share by which any E_k[T] in units of s, 1 + tau / s and 1 + overhead / s may change without a new simulation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Each of n workers' share of all gradients that are summed, for k = 1..n."""

    ks: IntArray  # that were simulated
    by_age: FloatArray  # (ks, m, LAGS + 1) of one worker of those that each of m stands for
    stands: IntArray  # (n,) which of the m stands for a worker

    def at(self, k: int) -> FloatArray:
        """(n,); adds up to 1."""
        share = self.by_age.sum(axis=2)
        return np.array([np.interp(k, self.ks, column) for column in share.T])[self.stands]

    def least(self, age_weight: float = 1.0, among: BoolArray | None = None) -> FloatArray:
        """The smallest for each k = 1..n (n,), as a multiple of an equal share: 0 where somebody is in no sum.

        `age_weight`: what each iteration of age leaves of a gradient; `among` (n,): those who are looked at (None: all).
        """
        n = len(self.stands)
        weight = (self.by_age @ age_weight ** np.arange(self.by_age.shape[2]))[:, self.stands]
        share = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        chosen = share if among is None else share[:, among]
        return np.asarray(np.interp(np.arange(1, n + 1), self.ks, n * chosen.min(axis=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of the process for k = 1..n, (n,) each: seconds, and gradients.

    `mean_s` is the mean time to the gradient that ends an iteration, `error_s` its standard error; `gradients` the mean
    number in an iteration's sum, `delays` (n, LAGS + 1) the shares of them that are 0, 1, 2 ... iterations old.
    """

    mean_s: FloatArray
    error_s: FloatArray
    gradients: FloatArray
    delays: FloatArray
    shares: Shares

    @property
    def workers(self) -> int:
        """n."""
        return len(self.mean_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What was simulated, all times in units of s: the draws, and what each rule asked for came to."""

    known: FloatArray  # as `_changed` looks at it
    law: str
    draws: Draws
    ks: IntArray
    base: FloatArray  # E_k[T] (ks,)
    alone: FloatArray  # the same of the draws (ks, chains)
    overhead: float
    found: dict[Rule, Process] = field(default_factory=dict)

    def of(self, rule: Rule) -> Process:
        """Simulated once."""
        if rule not in self.found:
            times, sizes, phase = self.draws.times, self.draws.sizes, self.draws.phase
            if rule in CARRIED:
                self.found.update(carried(times, self.ks, self.overhead, phase=phase, sizes=sizes))
            else:
                self.found[rule] = simulate(rule, times, self.ks, self.overhead, phase=phase, sizes=sizes)
        return self.found[rule]


@dataclass(slots=True, kw_only=True)
class Predictor:
    """Predicts; an estimate that has hardly changed keeps what the last simulation said. `rule`: where none is named."""

    rule: Rule = "stash"
    simulations: int = 0
    _last: Simulated | None = None

    def predict(
        self,
        estimate: Estimate,
        live: BoolArray,
        expected_s: FloatArray,
        overhead_s: float,
        rule: Rule | None = None,
    ) -> Prediction:
        """For k = 1..n of the n workers in the mask `live` (workers,); `expected_s` (n,) is their Poisson E_k[T].

        E_k[T] by the law in force is exact, what is simulated is the difference: so abort is exact, and k = n for all
        rules but batch-sync. All rules share the draws, and those with the same times their simulation.
        """
        base_s = law_times(estimate, live, expected_s)
        unit_s = max(estimate.service_s, estimate.event_s)  # what times are multiples of: s, where that is not 0
        known = np.append(base_s, (unit_s + estimate.event_s, unit_s + overhead_s)) / unit_s
        if self._last is None or _changed(known, self._last.known) or estimate.law != self._last.law:
            self._last = _simulated(estimate, live, base_s / unit_s, known, unit_s, overhead_s / unit_s)
            self.simulations += 1
        return _prediction(self._last, rule or self.rule, base_s, unit_s)


def _changed(times: FloatArray, before: FloatArray) -> bool:
    """Whether these, all above 0, are other ones than in the last simulation.

    E_k[T] for all k says who is live and how slow; of many workers some have always changed, and it matters little.
    """
    return len(times) != len(before) or bool(np.any(np.abs(times - before) > CHANGED * before))


def _simulated(
    estimate: Estimate, live: BoolArray, base: FloatArray, known: FloatArray, unit_s: float, overhead: float
) -> Simulated:
    """New draws."""
    n = len(base)
    draws = draw(estimate, live, unit_s)
    first = 1 if n <= MANY else n / KS  # fewer than one of those that are simulated stands for are none
    ks = np.unique(np.linspace(first, n, min(n, KS)).round().astype(np.int64))
    alone = simulate("abort", draws.times, ks, overhead, phase=draws.phase, sizes=draws.sizes)
    return Simulated(
        known=known,
        law=estimate.law,
        draws=draws,
        ks=ks,
        base=base[ks - 1],
        alone=alone.length,
        overhead=overhead,
        found={"abort": alone},
    )


def _prediction(last: Simulated, rule: Rule, base_s: FloatArray, unit_s: float) -> Prediction:
    """From the ks that were simulated to all."""
    process, n = last.of(rule), len(base_s)
    added, error = _difference(process.length - last.alone, last.alone, last.base if n <= MANY else None)
    ks, all_ks = last.ks, np.arange(1, n + 1)
    if n > MANY:  # the fastest of very many workers wait for nobody; and under async nobody waits for them
        nothing = -float(base_s[0]) / unit_s if rule == "async" else 0.0
        ks, added, error = np.append(0, ks), np.append(nothing, added), np.append(0.0, error)
    gradients = process.counts.sum(axis=(1, 2))
    delays = process.counts.sum(axis=1) / gradients[:, None]
    return Prediction(
        mean_s=np.maximum(base_s + unit_s * np.interp(all_ks, ks, added), 0.0),
        error_s=unit_s * np.interp(all_ks, ks, error),
        gradients=np.interp(all_ks, last.ks, gradients),
        delays=np.stack([np.interp(all_ks, last.ks, column) for column in delays.T], axis=1),
        shares=Shares(
            ks=last.ks,
            by_age=process.counts / gradients[:, None, None] / last.draws.sizes[:, None],
            stands=last.draws.stands,
        ),
    )


def _difference(longer: FloatArray, alone: FloatArray, expected: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Mean (ks,) and standard error of `longer` (ks, chains) than `alone`, of which the mean is known to be `expected`.

    The part that goes with `alone` over the chains is taken out (a control variate); 0 where `longer` is always 0.
    """
    mean, chains = longer.mean(axis=1), longer.shape[1]
    if expected is None:
        return mean, longer.std(axis=1, ddof=1) / np.sqrt(chains)
    off = alone - alone.mean(axis=1, keepdims=True)
    spread = np.sum(off**2, axis=1)
    slope = np.sum(longer * off, axis=1) / np.where(spread > 1e-12, spread, np.inf)
    rest = longer - slope[:, None] * off
    return mean + slope * (expected - alone.mean(axis=1)), rest.std(axis=1, ddof=1) / np.sqrt(chains)
