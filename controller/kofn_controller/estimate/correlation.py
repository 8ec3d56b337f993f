"""Measures how fast gradients turn and how noisy they are, from the aggregates' norms and products. No clock, no I/O.

The *signal* of a gradient is its mean over all batches; the difference from the signal is its *noise*. The *correlation
length* L is the lag, in iterations, at which the product of two aggregates has fallen to half of the squared length of
an aggregate's signal. L depends on the learning rate: gradients keep their direction for 10 or 20 iterations if it is
small, and for about one iteration if it is large. The *noise scale* phi is the squared length of a worker's noise,
divided by the squared length of the signal (McCandlish et al., An empirical model of large-batch training, 2018).
"""

import math
from dataclasses import dataclass, field

import numpy as np

from kofn_common.rpc.limits import LAGS
from kofn_controller.estimate.measurements import FloatArray

MEMORY = 256
"""Iterations after which a measured product has 1 / e of its weight."""

LENGTH_MIN, LENGTH_MAX = 0.5, 10.0
"""Bounds of L if the product falls to half within the measured lags."""

FARTHEST = 3.0
"""Upper bound of L, in multiples of LENGTH_MAX, if the product does not fall to half within LAGS iterations. L is then
extrapolated linearly: it is LENGTH_MAX times 0.5 / (1 - c), where c is the last value of `curve`."""

UNKNOWN = 2.0
"""Value of L and phi before enough is measured."""

SIGNAL_MIN = 0.05
"""Lower bound of the signal's share of an aggregate's squared length: a smaller signal looks like noise."""

SEVERAL = 1.2
"""An aggregate's noise is compared with the noise of single gradients if the aggregate has more gradients than this."""

KNOWN = 0.2
"""A product counts as measured once the weights of its measurements add up to more than this number of iterations."""

DECAY = math.exp(-1 / MEMORY)


@dataclass(slots=True)
class Correlation:
    """Exponentially weighted means over iterations."""

    _sums: FloatArray = field(default_factory=lambda: np.zeros(LAGS))  # weighted cosines, for lags 1..LAGS
    _weights: FloatArray = field(default_factory=lambda: np.zeros(LAGS))
    _norms: dict[int, float] = field(default_factory=dict)  # squared lengths of the latest aggregates, by iteration
    _signal: float = 0.0  # weighted sum of the signal's share of an aggregate's squared length
    _known: float = 0.0  # the sum of weights in `_signal`
    _gradients: float = 1.0  # mean number of gradients in a sum

    def add(
        self, iteration: int, *, gradients: float, gradient_norm2: float, norm2: float, products: tuple[float, ...]
    ) -> None:
        """Take the measurements of an iteration's aggregate a, which is the mean of a number of gradients, `gradients`.

        `norm2` is |a|^2, `products` are the products of a with the aggregates of 1, 2, ... iterations before,
        `gradient_norm2` is the mean |g|^2 of single gradients. A product has less weight if the signal's share of the
        aggregates is small.
        """
        if not 0 < norm2 < math.inf:
            return
        self._sums *= DECAY
        self._weights *= DECAY
        trust = float(np.clip(self.signal, SIGNAL_MIN, 1.0)) if self._known else 0.5
        for lag, product in enumerate(products[:LAGS], 1):
            before = self._norms.get(iteration - lag)
            if before:
                self._sums[lag - 1] += trust * product / math.sqrt(norm2 * before)
                self._weights[lag - 1] += trust
        self._norms[iteration] = norm2
        for old in [known for known in self._norms if known < iteration - LAGS]:
            del self._norms[old]
        self._gradients += 0.1 * (gradients - self._gradients) if self._known else gradients - self._gradients
        if gradients > SEVERAL and gradient_norm2 > 0:  # |a|^2 = G^2 + S / m, |g|^2 = G^2 + S
            share = (gradients - gradient_norm2 / norm2) / (gradients - 1)
            self._signal = self._signal * DECAY + min(max(share, -1.0), 1.0)
            self._known = self._known * DECAY + 1

    @property
    def signal(self) -> float:
        """The signal's share of an aggregate's squared length; 0 while unknown."""
        return self._signal / self._known if self._known else 0.0

    @property
    def curve(self) -> FloatArray:
        """The share of a gradient's direction that remains after 0, 1, 2, ... iterations, for the measured lags."""
        known = int(np.append(self._weights > KNOWN, False).argmin())  # the lags before the first unknown one
        if not known:
            return np.ones(1)
        cosines = self._sums[:known] / self._weights[:known]
        return np.append(1.0, cosines / self._signal_of(cosines[0]))

    @property
    def length(self) -> float:
        """L, in iterations."""
        curve = self.curve
        if len(curve) == 1:
            return UNKNOWN
        below = np.flatnonzero(curve < 0.5)
        if not below.size:
            lost = 1.0 - float(curve[-1])
            farther = min(0.5 / max(lost, 1e-9), FARTHEST) if len(curve) > LAGS else 1.0
            return min(float(len(curve)), LENGTH_MAX) * farther
        at = int(below[0])
        length = at - 1 + (curve[at - 1] - 0.5) / max(curve[at - 1] - curve[at], 1e-9)
        return float(np.clip(length, LENGTH_MIN, LENGTH_MAX))

    @property
    def noise_scale(self) -> float:
        """phi, in units of a worker's batch."""
        if not (self._weights[0] > KNOWN):
            return UNKNOWN
        signal = self._signal_of(self._sums[0] / self._weights[0])
        return self._gradients * (1 - signal) / signal

    @property
    def known(self) -> bool:
        return bool(self._weights[0] > KNOWN)

    def _signal_of(self, next_cosine: float) -> float:
        """Return the signal's share of an aggregate's squared length. It is measured by norms (`signal`), but is at
        least the mean cosine of two consecutive aggregates, `next_cosine`."""
        return float(np.clip(max(self.signal, next_cosine), SIGNAL_MIN, 1.0))
