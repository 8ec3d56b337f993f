"""Collects evidence that another option is really cheaper, and not only in this window.

A gain is the share of the present cost that another option saves. Its standard error comes from the model's
uncertainty: every worker's lambda, and tau, are moved by their own standard errors, and the costs are computed again.

A gain convinces if it is CONVINCING standard errors above 0 in the present window, or on average since the cumulative
sum of the gains began (it restarts when it falls below 0). So a large gain convinces as soon as one window shows it, a
small gain convinces after many windows, and noise almost never does.

The module has pure functions and sums; it knows nothing of workers' names, the switch or time.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.estimate.model import Estimate
from kofn_controller.policy.expected_time import expected_counts_of
from kofn_controller.policy.forecast import Forecast
from kofn_controller.policy.objective import gains

CONVINCING = 3.0
"""Standard errors above 0 from which a gain convinces. Noise alone shows such a gain in one window of 700."""

HELD = 0.5
"""Number of windows for which a larger k, or another rule, must look better. A worker outside the sums is known by
lower bounds only. If no other worker was blocked in a window, these bounds are low, and the worker looks fast for some
iterations.
"""

EXACT = 16
"""Maximum number of unknowns (workers, and tau) whose effects are computed without mixing."""

SETS = 8
"""Number of random moves of all unknowns if there are more than EXACT; the error is then known within a fifth."""

MOVED = 2048
"""Maximum product of moves and unknowns. At least one move is made, which suffices for very many workers, whose errors
average out."""

SEED = 1

NORMAL_95 = 1.96
"""Standard errors from the middle to the end of a 95 % interval."""

FARTHEST = 10.0
"""Maximum move of a lambda, in multiples of s + lambda, for a worker about which nothing is known."""

Costs = Callable[[Sequence[Forecast]], FloatArray]


@dataclass(slots=True, kw_only=True)
class Evidence:
    """The evidence for each option that is not in force. The evidence is kept as long as the present option stays in
    force."""

    window: int  # iterations after which measurements are independent
    error: FloatArray = field(default_factory=lambda: np.zeros(0))  # the latest standard errors of the gains
    _gain: FloatArray = field(default_factory=lambda: np.zeros(0))  # sum of gain / error^2
    _weight: FloatArray = field(default_factory=lambda: np.zeros(0))  # sum of 1 / error^2
    _since: FloatArray = field(default_factory=lambda: np.zeros(0))  # iterations for which a gain has been convincing

    def forget(self) -> None:
        """Drop all evidence, because another option is in force or other workers are live."""
        self.error = self._gain = self._weight = self._since = np.zeros(0)

    def weigh(
        self, gain: FloatArray, error: FloatArray, slow: BoolArray, *, margin: float, iterations: int
    ) -> BoolArray:
        """Add gains that were computed `iterations` after the last ones; return which options gain more than `margin`
        for sure, in the shape of `gain`.

        `slow` marks the options that must convince for HELD windows.
        """
        if gain.shape != self._gain.shape:
            self._gain, self._weight, self._since = np.zeros((3, *gain.shape))
        self.error = error
        weight = min(iterations / self.window, 1.0) / np.maximum(error, 1e-9) ** 2
        self._gain = np.maximum(self._gain + weight * gain, 0.0)
        self._weight = np.where(self._gain > 0, self._weight + weight, 0.0)
        sure = self._sure(gain, margin)
        self._since = np.where(sure, self._since + iterations, 0.0)
        return np.asarray(sure & (~slow | (self._since >= HELD * self.window)))

    def _sure(self, gain: FloatArray, margin: float) -> BoolArray:
        """Return which gains convince, by the present window or by the cumulative sum."""
        now = (gain > margin) & (gain > CONVINCING * self.error)
        weight = np.maximum(self._weight, 1e-300)
        mean = self._gain / weight
        return np.asarray(now | ((gain > 0) & (mean > margin) & (mean * np.sqrt(weight) > CONVINCING)))


def gain_error(
    estimate: Estimate, live: BoolArray, forecasts: Sequence[Forecast], costs: Costs, present: tuple[int, int]
) -> FloatArray:
    """Return the standard errors (forecasts, n) of the gains over the present option, for the n workers in the mask
    `live` (workers,).

    Each unknown contributes the larger effect of its move up and its move down, because costs are not linear. A worker
    with its own distribution is moved by its own interval; apart from that it is treated like a worker with Poisson's
    law.
    """
    lambdas_s, events_s = _moved(estimate, live)
    counts = expected_counts_of(lambdas_s / events_s[:, None])
    times_s = estimate.service_s + events_s[:, None] * counts

    def gained(shift_s: FloatArray | float) -> FloatArray:
        found = costs([_shifted(forecast, shift_s) for forecast in forecasts])
        return gains(found, float(found[present]))

    off = np.abs(np.array([gained(shift_s) for shift_s in times_s[1:] - times_s[0]]) - gained(0.0))
    largest = off.reshape(2, -1, *off.shape[1:]).max(axis=0)
    return np.asarray(np.sqrt(np.mean(largest**2, axis=0)))


def _shifted(forecast: Forecast, shift_s: FloatArray | float) -> Forecast:
    """Return the forecast with first-block times that are longer by `shift_s`."""
    return replace(forecast, expected_s=forecast.expected_s + shift_s, predicted_s=forecast.predicted_s + shift_s)


def _moved(estimate: Estimate, live: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return lambdas (1 + 2 * sets, n) and tau (1 + 2 * sets,): first unmoved, then moved by each set of
    signs, then moved by the opposite of each set."""
    middle_s = estimate.lambda_s[live]
    up_s = np.minimum((estimate.high_s[live] - middle_s) / NORMAL_95, FARTHEST * (estimate.service_s + middle_s))
    down_s = (middle_s - estimate.low_s[live]) / NORMAL_95
    sets = _signs(len(middle_s) + 1)
    signs = np.concatenate((np.zeros((1, sets.shape[1])), sets, -sets))
    workers, unit = signs[:, :-1], signs[:, -1]
    lambdas_s = middle_s + np.where(workers > 0, up_s, down_s) * workers
    return np.maximum(lambdas_s, 0.0), estimate.event_s * np.exp(unit * estimate.event_error)


@functools.lru_cache(maxsize=8)
def _signs(unknowns: int) -> FloatArray:
    """Return which unknowns are moved up (1) and which down (-1), (sets, unknowns). Columns are orthogonal for at most
    EXACT unknowns.
    """
    if unknowns <= EXACT:
        signs = np.ones((1, 1))
        while len(signs) < unknowns:
            signs = np.block([[signs, signs], [signs, -signs]])  # Sylvester's construction of Hadamard matrices
        return signs[:, :unknowns]
    return np.random.default_rng(SEED).choice([-1.0, 1.0], (min(SETS, max(MOVED // unknowns, 1)), unknowns))
