"""The mean iteration time of the process for every k, late workers' carry-over included: a renewal simulation.

E_k[T] lets all workers start an iteration together. They do not: who is late goes on with an earlier iteration's
gradient. The process (late = "finish", what host/train.py does), all times those of the model T_i = s + tau * N_i:

- An iteration begins when the one before has ended. The workers that were in that one start a gradient at once.
- A late worker is in the middle of a gradient. When it has finished that, the gradient goes to the stash and is none
  of the k of any iteration; the worker moves to the iteration that is then current and starts its next gradient.
- The iteration ends when k workers have finished gradients that they started in it. All others are late.

With R_i the time that worker i still needs for an old gradient when the iteration begins (0: it was in), it arrives at
A_i = R_i + T_i; the iteration lasts L = the k-th smallest A_i; then R_i becomes max(A_i - L, 0) where R_i <= L, else
R_i - L. As A_i >= T_i, an iteration is never shorter than the k-th smallest of the T_i: carry-over makes it longer
than E_k[T], most where k is small; k = n has none. (It would be shorter if a gradient of an earlier iteration counted
for the one that is current when it is finished. No worker does that.)

No network: an iteration's transfer, sum and step are not in it. The draws are fixed by SEED, the same for every k.
"""

import functools
from dataclasses import dataclass, field

import numpy as np
from scipy import special

from controller.choose import GROUP_ABOVE, TAIL, groups
from controller.measure import BoolArray, FloatArray
from controller.model import Estimate

SEED = 1

STEPS = 40
"""Iterations that are simulated, the first BURN_IN of them only to forget that all start together."""

BURN_IN = 16

CHAINS = 32
"""Simulations of the same workers side by side; half as many for each doubling of their number above FEW."""

FEW = 16

KS = 16
"""Most ks that are simulated; between them the correction is interpolated."""

TIE = 1e-3
"""Blocking events by which equal times are told apart, at random: in the process no two are equal."""

MANY = GROUP_ABOVE
"""Most workers that are simulated."""

CHANGED = 0.05
"""Share by which a worker's mean time T_i, in units of s, may change (or 1 + tau / s) without a new simulation."""

IntArray = np.typing.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean iteration times in seconds for k = 1..n (n,), and their standard errors."""

    mean_s: FloatArray
    error_s: FloatArray


@dataclass(slots=True, kw_only=True)
class Predictor:
    """Predicts; an estimate that has hardly changed keeps what the last simulation said."""

    simulations: int = 0
    _workers: FloatArray = field(default_factory=lambda: np.empty(0))  # what was simulated, in units of s
    _live: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    _mean: FloatArray = field(
        default_factory=lambda: np.empty(0)
    )  # the correction for each k in units of s, and its error
    _error: FloatArray = field(default_factory=lambda: np.empty(0))

    def predict(self, estimate: Estimate, live: BoolArray, expected_s: FloatArray) -> Prediction:
        """For k = 1..n of the n workers in the mask `live` (workers,); `expected_s` (n,) is their E_k[T].

        What is simulated is a correction: E_k[T] + mean(L - k-th smallest T_i of the same draws). So k = n is exact,
        and the others are less noisy than the mean of L.
        """
        if self._changed(estimate, live):
            rates = estimate.lambda_s[live] / estimate.event_s
            mean_s, error_s = correction(estimate.service_s, estimate.event_s, rates)
            self._mean, self._error = mean_s / _unit_s(estimate), error_s / _unit_s(estimate)
            self.simulations += 1
        unit_s = _unit_s(estimate)
        return Prediction(mean_s=expected_s + unit_s * self._mean, error_s=unit_s * self._error)

    def _changed(self, estimate: Estimate, live: BoolArray) -> bool:
        """Whether these are other workers than in the last simulation; notes them if so."""
        workers = 1 + np.append(estimate.lambda_s[live], estimate.event_s) / _unit_s(estimate)
        if np.array_equal(live, self._live) and (np.abs(workers - self._workers) <= CHANGED * self._workers).all():
            return False
        self._workers, self._live = workers, live.copy()
        return True


def _unit_s(estimate: Estimate) -> float:
    """What times are multiples of: s, where that is not 0."""
    return max(estimate.service_s, estimate.event_s)


def correction(service_s: float, event_s: float, rates: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What carry-over adds to E_k[T], k = 1..n, and its standard error: seconds, both (n,).

    Above MANY workers MANY stand for all: sorted and split evenly, each with its group's mean, k as a share of n.
    """
    simulated = groups(rates, MANY)[0] if len(rates) > MANY else rates
    n = len(simulated)
    ks = np.unique(np.linspace(1, n, min(n, KS)).round().astype(np.int64))
    times = service_s + event_s * poisson_counts(simulated)
    added = simulate(times, ks)
    mean, error = added.mean(axis=1), added.std(axis=1, ddof=1) / np.sqrt(added.shape[1])
    share = np.arange(1, len(rates) + 1) / len(rates)
    shares = np.append(0, ks / n)  # the fastest of very many workers wait for nobody
    return np.interp(share, shares, np.append(0, mean)), np.interp(share, shares, np.append(0, error))


def simulate(times: FloatArray, ks: IntArray) -> FloatArray:
    """Mean of L - k-th smallest T (len(ks), chains) in the steps after the first BURN_IN; `times`: (steps, chains, n).

    One step of all ks and chains at once, as the module says.
    """
    steps, chains, n = times.shape
    rest = np.zeros((len(ks), chains, n))
    added = np.zeros((len(ks), chains))
    index = (ks - 1)[:, None, None]
    for step, drawn in enumerate(times):
        arrival = rest + drawn
        length = np.take_along_axis(np.sort(arrival, axis=2), np.broadcast_to(index, (len(ks), chains, 1)), axis=2)
        if step >= BURN_IN:
            added += length[:, :, 0] - np.sort(drawn, axis=1)[:, ks - 1].T
        rest = np.maximum(np.where(rest <= length, arrival, rest) - length, 0.0)
    mean: FloatArray = added / (steps - BURN_IN)
    return mean


def poisson_counts(rates: FloatArray) -> FloatArray:
    """Poisson(rates[i]) counts (steps, chains, n): each worker's are evenly spaced quantiles, no two counts equal."""
    order, ties = _draws(len(rates))
    levels = (np.arange(order[..., 0].size) + 0.5) / order[..., 0].size
    counts = ties.copy()
    for i, rate in enumerate(rates):
        most = int(rate + TAIL * np.sqrt(rate) + 16)
        counts[:, :, i] += np.searchsorted(special.pdtr(np.arange(most), rate), levels)[order[:, :, i]]
    return counts


@functools.lru_cache(maxsize=4)
def _draws(n: int) -> tuple[IntArray, FloatArray]:
    """For each of n workers an order of its quantiles, and what decides between equal counts: (steps, chains, n)."""
    random = np.random.default_rng(SEED)
    shape = (STEPS, max(CHAINS * FEW // max(n, FEW), 4), n)
    quantiles = np.arange(shape[0] * shape[1])[:, None].repeat(n, axis=1)
    return random.permuted(quantiles, axis=0).reshape(shape), random.uniform(0, TIE, shape)
