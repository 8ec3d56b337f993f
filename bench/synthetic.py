"""First-block times made from known parameters."""

from dataclasses import dataclass

import numpy as np

from kofn_controller.estimate.measurements import BoolArray, FloatArray
from kofn_controller.policy.forecast import Forecast

SERVICE_S = 0.010
EVENT_S = 0.005
NOISE_S = 0.0001
"""Mean of the exponential noise on every time; s is the mean time of a block that nothing blocks, with its noise."""

SMALL, LARGE, ALWAYS = (0.2, 2.0), (0.5, 20.0), (10.0, 40.0)
"""Blocking events a block, lambda / tau, of the fastest and of the slowest worker; the others lie evenly between, in
ratio.  In the first two someone is unblocked now and then: otherwise s cannot be told from blocking that is always
there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSetting:
    """The parameters of the workers, and the share that is censored."""

    workers: int
    censored: float  # share of the observations that are lower bounds
    events: tuple[float, float]
    window: int = 16

    @property
    def lambda_s(self) -> FloatArray:
        return EVENT_S * np.geomspace(*self.events, self.workers)

    def made(self, random: np.random.Generator) -> tuple[FloatArray, BoolArray]:
        """Times and cuts (n, window).

        An observation is cut off at an independent draw of the worker's own time, moved so that `censored` of them
        are: the fast and the slow are cut alike, as an iteration's end would not do.
        """
        shape = (self.workers, self.window)
        times_s = self._times(random, shape)
        if not self.censored:
            return times_s, np.zeros(shape, dtype=np.bool_)
        ends_s = self._times(random, shape)
        exposed = random.random(shape) < 2 * self.censored  # of two like draws the second is the smaller half the time
        cut = exposed & (ends_s < times_s)
        return np.where(cut, ends_s, times_s), cut

    def _times(self, random: np.random.Generator, shape: tuple[int, int]) -> FloatArray:
        """s + tau * N + noise."""
        counts = random.poisson(self.lambda_s[:, None] / EVENT_S, shape)
        noise_s = random.exponential(NOISE_S, shape) - NOISE_S
        return np.asarray(SERVICE_S + EVENT_S * counts + noise_s)


def times_alone(expected_s: FloatArray, predicted_s: FloatArray | None = None) -> Forecast:
    """A forecast of E_k[T], which is the prediction as well where none is given; every iteration is worth the same."""
    return Forecast(
        expected_s=expected_s,
        predicted_s=expected_s if predicted_s is None else predicted_s,
        overhead_s=0.0,
        worth=np.ones(len(expected_s)),
    )
