"""What an iteration with k workers is worth, measured from the gradients' norms and products. No clock, no I/O.

A step along a direction that has cosine c with the present gradient brings c^2 of what the gradient itself would (at
the best step size, to second order). Two things turn the sum of an iteration away from the gradient:

- noise: each of its G gradients is from one batch. With the noise scale phi = S / |g|^2, S the summed variance of one
  worker's gradient (McCandlish et al. 2018), c^2 = 1 / (1 + phi / G);
- age: some were begun d iterations ago, and the gradient has turned since. rho(d), the mean product of gradients d
  iterations apart over their squared length, is what is left: c^2 = (mean of rho over the G gradients)^2.

And a sum of fewer gradients is a smaller step where each has the same weight. So an iteration's worth is
step x (mean rho)^2 / (1 + phi / G), 1 for infinitely many fresh gradients.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from controller.carryover import LAGS, Prediction
from controller.measure import FloatArray

MEMORY = 32
"""Iterations after which a measured product counts for 1 / e."""

PRIOR = 8.0
"""Iterations' weight of what is taken for granted before anything is measured: rho(d) = PRIOR_RHO ** d."""

PRIOR_RHO = 0.9

SIGNAL_MIN = 0.02
"""Least share of one gradient's squared length that is signal: it cannot be told from noise below."""

RHO_MIN = 0.05
"""Least mean rho: below it nothing is known but that it is bad."""


@dataclass(slots=True, kw_only=True)
class Progress:
    """Running means, forgotten exponentially."""

    _decay: float = math.exp(-1 / MEMORY)
    _gradient: float = 0.0  # weighted sum of |g_i|^2, and of the weights
    _gradients: float = 0.0
    _aggregate: float = 0.0  # of |G|^2 + S / number, as an aggregate of that many gradients shows it
    _inverse: float = 0.0  # of 1 / number
    _products: FloatArray = field(default_factory=lambda: np.zeros(LAGS))
    _weights: FloatArray = field(default_factory=lambda: np.zeros(LAGS))
    _aggregates: float = 0.0

    def gradient(self, norm2: float) -> None:
        """|g|^2 of one worker's gradient."""
        self._gradient = self._decay * self._gradient + norm2
        self._gradients = self._decay * self._gradients + 1

    def aggregate(self, norm2: float, products: Sequence[float], *, gradients: float, step: float) -> None:
        """An iteration's aggregate: |mean|^2 and its products with those before; `step` is the sum of the weights of
        its `gradients`.
        """
        scale = step**2
        self._aggregate = self._decay * self._aggregate + norm2 / scale
        self._inverse = self._decay * self._inverse + 1 / gradients
        self._aggregates = self._decay * self._aggregates + 1
        known = min(len(products), LAGS)
        self._products *= self._decay
        self._weights *= self._decay
        self._products[:known] += np.asarray(products[:known]) / scale
        self._weights[:known] += 1

    @property
    def signal(self) -> float:
        """|G|^2: the squared length of the gradient without noise; 0 while nothing is known."""
        if not self._gradients or not self._aggregates:
            return 0.0
        single, mean = self._gradient / self._gradients, self._aggregate / self._aggregates
        inverse = self._inverse / self._aggregates
        if inverse > 0.9:  # one gradient an iteration: nothing to compare with
            return single
        return float(np.clip((mean - inverse * single) / (1 - inverse), SIGNAL_MIN * single, single))

    @property
    def noise_scale(self) -> float:
        """phi in units of a worker's batch; 0 while nothing is known."""
        if not (signal := self.signal):
            return 0.0
        return self._gradient / self._gradients / signal - 1

    @property
    def alignment(self) -> FloatArray:
        """rho(0..LAGS) (LAGS + 1,), at most 1."""
        prior = PRIOR_RHO ** np.arange(LAGS + 1)
        if not (signal := self.signal):
            return np.asarray(prior)
        measured = self._products + PRIOR * signal * prior[1:]
        return np.append(1.0, np.minimum(measured / (self._weights + PRIOR) / signal, 1.0))

    def worth(self, prediction: Prediction, weights: FloatArray) -> FloatArray:
        """Of an iteration for k = 1..n (n,); `weights` (n,) of one gradient in the sum."""
        aligned = np.maximum(prediction.delays @ self.alignment, RHO_MIN)
        step = prediction.gradients * weights
        return np.asarray(step * aligned**2 / (1 + self.noise_scale / prediction.gradients))
