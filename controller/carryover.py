"""The mean iteration time of the process for every k, late workers' carry-over included: a renewal simulation.

E_k[T] lets all workers start an iteration together. They do not: who is late goes on with an earlier iteration's
gradient. The process (late = "finish", what host/train.py does), all times those of the model T_i = s + tau * N_i:

- An iteration begins when the one before has ended. The workers that were in that one start a gradient at once.
- A late worker is in the middle of a gradient. When it has finished that, the gradient goes to the stash and is none
  of the k of any iteration; the worker moves to the iteration that is then current and starts its next gradient.
- The iteration ends when k workers have finished gradients that they started in it. All others are late.

With R_i the time that worker i still needs for an old gradient when the iteration begins (0: it was in), it arrives at
A_i = R_i + T_i; after L = the k-th smallest A_i, and an overhead O for transfer, sum and step, the next iteration
begins; then R_i becomes max(A_i - L - O, 0) where R_i <= L, else max(R_i - L - O, 0). As A_i >= T_i, an iteration is
never shorter than the k-th smallest of the T_i and O: carry-over makes it longer, most where k is small; k = n has
none. (It would be shorter if a gradient of an earlier iteration counted for the one that is current when it is
finished. No worker does that.)

The same process says how many gradients an iteration's sum holds (late ones too: they are in the sum of a later one)
and how old they are. The draws are fixed by SEED, the same for every k.
"""

import functools
from dataclasses import dataclass, field, replace

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

LAGS = 16
"""Iterations by which a gradient's delay is told apart; longer ones count as this."""

COUNTED = slice(STEPS - 2 * LAGS, STEPS - LAGS)
"""Steps whose gradients are counted: it is seen for LAGS steps whether they are in a sum."""

MANY = GROUP_ABOVE
"""Most workers that are simulated."""

CHANGED = 0.05
"""Share by which any E_k[T] in units of s, 1 + tau / s and 1 + overhead / s may change without a new simulation."""

IntArray = np.typing.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is expected of the process for k = 1..n, (n,) each: seconds, and gradients.

    `mean_s` is the mean time to the first block of the k-th worker, `error_s` its standard error; `gradients` the mean
    number in an iteration's sum, `delays` (n, LAGS + 1) the shares of them that are 0, 1, 2 ... iterations old.
    """

    mean_s: FloatArray
    error_s: FloatArray
    gradients: FloatArray
    delays: FloatArray

    @property
    def workers(self) -> int:
        """n."""
        return len(self.mean_s)


@dataclass(slots=True, kw_only=True)
class Predictor:
    """Predicts; an estimate that has hardly changed keeps what the last simulation said. `late`: as policy.late."""

    late: str = "finish"
    simulations: int = 0
    _simulated: FloatArray = field(default_factory=lambda: np.empty(0))  # what was, as _changed() looks at it
    _last: Prediction | None = None  # its times are corrections of E_k[T], in units of s

    def predict(self, estimate: Estimate, live: BoolArray, expected_s: FloatArray, overhead_s: float) -> Prediction:
        """For k = 1..n of the n workers in the mask `live` (workers,); `expected_s` (n,) is their E_k[T].

        What is simulated is a correction: E_k[T] + mean(L - k-th smallest T_i of the same draws). So k = n is exact,
        and the others are less noisy than the mean of L.
        """
        if self.late == "abort":
            return _together(len(expected_s), mean_s=expected_s)
        unit_s = max(estimate.service_s, estimate.event_s)  # what times are multiples of: s, where that is not 0
        if self._changed(np.append(expected_s, (unit_s + estimate.event_s, unit_s + overhead_s)) / unit_s):
            rates = estimate.lambda_s[live] / estimate.event_s
            found = simulate_all(estimate.service_s, estimate.event_s, rates, overhead_s)
            self._last = replace(found, mean_s=found.mean_s / unit_s, error_s=found.error_s / unit_s)
            if self.late == "drop":
                self._last = _together(found.workers, mean_s=self._last.mean_s, error_s=self._last.error_s)
            self.simulations += 1
        assert self._last is not None
        last = self._last
        return replace(last, mean_s=expected_s + unit_s * last.mean_s, error_s=unit_s * last.error_s)

    def _changed(self, times: FloatArray) -> bool:
        """Whether these, all above 0, are other ones than in the last simulation; notes them if so.

        E_k[T] for all k says who is live and how slow; of many workers some have always changed, and it matters little.
        """
        before = self._simulated
        if len(times) == len(before) and (np.abs(times - before) <= CHANGED * before).all():
            return False
        self._simulated = times
        return True


def _together(n: int, *, mean_s: FloatArray, error_s: FloatArray | None = None) -> Prediction:
    """Late gradients are in no sum: k fresh ones are."""
    return Prediction(
        mean_s=mean_s,
        error_s=np.zeros(n) if error_s is None else error_s,
        gradients=np.arange(1.0, n + 1),
        delays=np.eye(1, LAGS + 1).repeat(n, axis=0),
    )


def simulate_all(service_s: float, event_s: float, rates: FloatArray, overhead_s: float) -> Prediction:
    """For k = 1..n, with `mean_s` what carry-over adds to E_k[T], in seconds.

    Above MANY workers MANY stand for all: sorted and split evenly, each with its group's mean, k as a share of n.
    """
    simulated = groups(rates, MANY)[0] if len(rates) > MANY else rates
    n = len(simulated)
    ks = np.unique(np.linspace(1, n, min(n, KS)).round().astype(np.int64))
    process = simulate(service_s + event_s * poisson_counts(simulated), ks, overhead_s)
    added = process.added
    share = np.arange(1, len(rates) + 1) / len(rates)
    shares = np.append(0, ks / n)  # the fastest of very many workers wait for nobody
    mean, error = added.mean(axis=1), added.std(axis=1, ddof=1) / np.sqrt(added.shape[1])
    return Prediction(
        mean_s=np.interp(share, shares, np.append(0, mean)),
        error_s=np.interp(share, shares, np.append(0, error)),
        gradients=np.interp(share, shares[1:], process.gradients) * len(rates) / n,
        delays=np.stack([np.interp(share, shares[1:], column) for column in process.delays.T], axis=1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What was simulated of each of some ks.

    `added`: mean of L - k-th smallest T (ks, chains); `gradients`: in an iteration's sum (ks,); `delays`: shares of
    them by their age (ks, LAGS + 1).
    """

    added: FloatArray
    gradients: FloatArray
    delays: FloatArray


def simulate(times: FloatArray, ks: IntArray, overhead_s: float) -> Process:
    """All ks and chains at once, step by step, as the module says; `times`: (steps, chains, n)."""
    steps, chains, n = times.shape
    rest = np.zeros((len(ks), chains, n))
    added = np.zeros((len(ks), chains))
    index = np.broadcast_to((ks - 1)[:, None, None], (len(ks), chains, 1))
    begun = np.empty((steps, *rest.shape), np.bool_)  # a gradient of this iteration
    included = np.empty_like(begun)
    for step, drawn in enumerate(times):
        arrival = rest + drawn
        length = np.take_along_axis(np.sort(arrival, axis=2), index, axis=2)
        if step >= BURN_IN:
            added += length[:, :, 0] - np.sort(drawn, axis=1)[:, ks - 1].T
        begun[step], included[step] = rest <= length, arrival <= length
        rest = np.maximum(np.where(begun[step], arrival, rest) - length - overhead_s, 0.0)
    counts = _delays(begun, included)
    made = counts.sum(axis=1)
    return Process(
        added=added / (steps - BURN_IN),
        gradients=made / (chains * (COUNTED.stop - COUNTED.start)),
        delays=counts / made[:, None],
    )


def _delays(begun: BoolArray, included: BoolArray) -> FloatArray:
    """How many gradients were in the sum 0, 1, ... iterations after theirs (ks, LAGS + 1), the last: LAGS or more.

    A gradient is in the first sum that its worker is in from then on: long after the last step for who is rarely in;
    for who is not in once it is in none. Arguments (steps, ks, chains, n).
    """
    steps, ks = begun.shape[:2]
    counts = np.zeros(ks * (LAGS + 1))
    ever = np.any(included[BURN_IN:], axis=(0, 2), keepdims=True)[0]
    until = np.full(begun.shape[1:], LAGS)  # iterations until the worker is in
    offset = np.arange(ks)[:, None, None] * (LAGS + 1)
    for step in range(steps - 1, COUNTED.start - 1, -1):
        until = np.where(included[step], 0, until + 1)
        if step < COUNTED.stop:
            summed = begun[step] & ever
            counts += np.bincount((np.minimum(until, LAGS) + offset)[summed], minlength=len(counts))
    return counts.reshape(ks, LAGS + 1)


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
