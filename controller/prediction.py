"""What is expected of the process under each rule, for every k: iteration times, sums, ages, shares.

The process (`process`) is simulated with Poisson draws, the same for every k, every rule and every estimate; what it
says of times is taken as a correction of E_k[T]. It is repeated only when the estimate has changed. Knows nothing of
what an iteration is worth.
"""

import functools
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from controller.choose import GROUP_ABOVE, TAIL
from controller.measure import BoolArray, FloatArray
from controller.model import Estimate
from controller.process import AGES, BURN_IN, CARRIED, Beyond, IntArray, Process, carried, simulate
from run.late import RuleName, weight_at

SEED = 1

STEPS = BURN_IN + 40
"""Iterations that are simulated."""

CHAINS = 32
"""Simulations of the same workers side by side; half as many for each doubling of their number above FEW."""

FEW = 16

KS = 16
"""Most ks that are simulated; between them what is found is interpolated."""

MANY = GROUP_ABOVE
"""Most workers that are simulated: of more, sorted by lambda and split evenly, so many stand for all."""

TIE = 1e-3
"""Blocking events by which equal times are told apart, at random: in the process no two are equal."""

CHANGED = 0.05
"""Share by which any E_k[T] in units of s, 1 + tau / s, or one more than what comes beyond in units of s may change
without a new simulation."""


def weights_of(age_weight: float) -> FloatArray:
    """Of gradients that are 0, 1, 2 ... iterations old (AGES + 1,)."""
    return np.array([weight_at(age, age_weight) for age in range(AGES + 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Each of n workers' share of all gradients that are summed, for k = 1..n."""

    ks: IntArray  # that were simulated
    by_age: FloatArray  # (ks, m, AGES + 1) of one worker of those that each of m stands for
    stands: IntArray  # (n,) which of the m stands for a worker

    def least(self, age_weight: float = 1.0, among: BoolArray | None = None) -> FloatArray:
        """The smallest for each k = 1..n (n,), as a multiple of an equal share: 0 where somebody is in no sum.

        `age_weight`: what each iteration of age leaves of a gradient; `among` (n,): who is looked at (None: all).
        """
        n = len(self.stands)
        weight = (self.by_age @ weights_of(age_weight))[:, self.stands]
        share = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        chosen = share if among is None else share[:, among]
        return np.asarray(np.interp(np.arange(1, n + 1), self.ks, n * chosen.min(axis=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of the process for k = 1..n, (n,) each: seconds, and gradients.

    `mean_s` is the mean time to the gradient that ends an iteration, `error_s` its standard error; `gradients` the mean
    number in an iteration's sum, `delays` (n, AGES + 1) the shares of them that are 0, 1, 2 ... iterations old.
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
    """What was simulated, all times in units of s: the draws, and what each rule that was asked for came to."""

    known: FloatArray  # as `_changed` looks at it
    times: FloatArray  # (STEPS, chains, m)
    phase: FloatArray  # (chains, m)
    sizes: FloatArray  # (m,) how many workers each stands for
    stands: IntArray  # (n,)
    ks: IntArray
    beyond: Beyond
    found: dict[RuleName, Process] = field(default_factory=dict)

    def of(self, rule: RuleName) -> Process:
        """Simulated once."""
        if rule not in self.found:
            given = {"phase": self.phase, "sizes": self.sizes}
            if rule in CARRIED:
                self.found.update(carried(self.times, self.ks, self.beyond, **given))
            else:
                self.found[rule] = simulate(rule, self.times, self.ks, self.beyond, **given)
        return self.found[rule]


@dataclass(slots=True, kw_only=True)
class Predictor:
    """Predicts; an estimate that has hardly changed keeps what the last simulation said."""

    simulations: int = 0
    _last: Simulated | None = None

    def predict(
        self, estimate: Estimate, live: BoolArray, expected_s: FloatArray, beyond_s: Beyond, rule: RuleName
    ) -> Prediction:
        """For k = 1..n of the n workers in the mask `live` (workers,); `expected_s` (n,) is their E_k[T].

        `beyond_s`: what comes beyond first blocks, seconds.

        E_k[T] is exact, what is simulated is the difference to that of the same draws: so `abort` is exact, and so is
        k = n for all rules but `batch-sync`.
        """
        unit_s = max(estimate.service_s, estimate.event_s)  # what times are multiples of: s, where that is not 0
        units = Beyond(*(spent_s / unit_s for spent_s in beyond_s))
        known = np.append(expected_s / unit_s, (1 + estimate.event_s / unit_s, 1 + units.overhead, 1 + units.catch_up))
        if self._last is None or _changed(known, self._last.known):
            rates = estimate.lambda_s[live] / estimate.event_s
            service, event = estimate.service_s / unit_s, estimate.event_s / unit_s
            self._last = _simulated(rates, service, event, units, known)
            self.simulations += 1
        return _prediction(self._last, rule, expected_s, unit_s)


def _changed(known: FloatArray, before: FloatArray) -> bool:
    """Whether these, all above 0, are other ones than in the last simulation.

    E_k[T] for all k says who is live and how slow; of many workers some have always changed, and it matters little.
    """
    return len(known) != len(before) or bool(np.any(np.abs(known - before) > CHANGED * before))


def _simulated(rates: FloatArray, service: float, event: float, beyond: Beyond, known: FloatArray) -> Simulated:
    """New draws, of workers with these events a block."""
    n = len(rates)
    parts = np.array_split(np.argsort(rates, kind="stable"), min(n, MANY))
    stands = np.empty(n, np.int64)
    for place, part in enumerate(parts):
        stands[part] = place
    means = np.array([rates[part].mean() for part in parts])
    first = 1 if n <= MANY else n / KS  # fewer than one of those that are simulated stands for are none
    order, ties, phase = _draws(len(parts))
    return Simulated(
        known=known,
        times=service + event * _poisson_counts(means, order, ties),
        phase=phase,
        sizes=np.array([float(len(part)) for part in parts]),
        stands=stands,
        ks=np.unique(np.linspace(first, n, min(n, KS)).round().astype(np.int64)),
        beyond=beyond,
    )


def _prediction(last: Simulated, rule: RuleName, expected_s: FloatArray, unit_s: float) -> Prediction:
    """From the ks that were simulated to all."""
    process, alone = last.of(rule), last.of("abort")
    ks, all_ks = last.ks, np.arange(1, len(expected_s) + 1)
    longer = process.length - alone.length  # (ks, chains)
    added, error = longer.mean(axis=1), longer.std(axis=1, ddof=1) / np.sqrt(longer.shape[1])
    gradients = process.counts.sum(axis=(1, 2))
    delays = process.counts.sum(axis=1) / gradients[:, None]
    return Prediction(
        mean_s=np.maximum(expected_s + unit_s * np.interp(all_ks, ks, added), 0.0),
        error_s=unit_s * np.interp(all_ks, ks, error),
        gradients=np.interp(all_ks, ks, gradients),
        delays=np.stack([np.interp(all_ks, ks, column) for column in delays.T], axis=1),
        shares=Shares(
            ks=ks, by_age=process.counts / gradients[:, None, None] / last.sizes[:, None], stands=last.stands
        ),
    )


def _poisson_counts(rates: FloatArray, order: IntArray, ties: FloatArray) -> FloatArray:
    """Poisson(rates[i]) counts (steps, chains, n): each worker's are evenly spaced quantiles, no two counts equal."""
    levels = (np.arange(order[..., 0].size) + 0.5) / order[..., 0].size
    counts = ties.copy()
    for i, rate in enumerate(rates):
        most = int(rate + TAIL * np.sqrt(rate) + 16)
        counts[:, :, i] += np.searchsorted(special.pdtr(np.arange(most), rate), levels)[order[:, :, i]]
    return counts


@functools.lru_cache(maxsize=4)
def _draws(n: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """For each of n workers an order of its quantiles and what decides between equal counts, (steps, chains, n); and
    how much of a gradient each still needs when the first iteration begins, 0 to 1 (chains, n)."""
    random = np.random.default_rng(SEED)
    shape = (STEPS, max(CHAINS * FEW // max(n, FEW), 4), n)
    quantiles = np.arange(shape[0] * shape[1])[:, None].repeat(n, axis=1)
    order = random.permuted(quantiles, axis=0).reshape(shape)
    return order, random.uniform(0, TIE, shape), random.uniform(0, 1, shape[1:])
