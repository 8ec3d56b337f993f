"""Adam and LAMB for one worker's shard: their state, and their step.

Once the variance is frozen (1 bit), the values of a block share one step s.  An element whose variance is far below its
block's variance would change by huge steps, s / sqrt(variance).  So the variance gets a floor, and elements that never
had a gradient get no momentum (DeepSpeed's exp_avg_mask).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kofn_host.arrays import Floats, Floats64
from kofn_host.zero.settings import ZeroSettings

Segments = Sequence[tuple[int, slice]]
"""The shard's pieces, cut at edges of the flat parameters: a piece's number, and its place in the shard
(shards.Shards.segments)."""

Gather = Callable[[Floats], Floats]
"""Returns all workers' arrays (...), by rank (workers, ...), exact."""

COEFFICIENT = (0.01, 10.0)
"""Bounds of LAMB's trust ratio, as in DeepSpeed."""

COEFFICIENT_BETA = 0.9
"""The factor of the moving average at which a trust ratio is frozen."""

FACTOR, FACTOR_CHANGE = (0.5, 4.0), 0.1
"""Bounds of a frozen trust ratio's factor, and the largest relative change of the factor in a step."""


class ShardOptimizer(ABC):
    """An optimizer of one shard.

    `parameters`: the shard's parameters, which change in place; `exp_avg`: the momentum's array; `tensors`: the shard's
    pieces, cut at the edges of the model's `count` tensors.
    """

    def __init__(
        self,
        settings: ZeroSettings,
        parameters: Floats,
        *,
        exp_avg: Floats,
        tensors: Segments,
        count: int,
        gather: Gather,
    ) -> None:
        self.parameters, self.exp_avg, self.exp_avg_sq = parameters, exp_avg, np.zeros_like(parameters)
        self.frozen = False
        self._settings, self._tensors, self._count, self._gather = settings, tensors, count, gather

    @property
    def arrays(self) -> dict[str, Floats]:
        """The shard's arrays by name, without the momentum."""
        return {"exp_avg_sq": self.exp_avg_sq}

    @property
    def shared(self) -> dict[str, Floats64]:
        """The arrays that are equal at all workers, by name."""
        return {}

    def resume_frozen(self) -> None:
        """Become frozen, as after freeze(); the caller fills the arrays."""
        self.frozen = True

    def take(self, gradient: Floats, *, momentum: bool = True) -> None:
        """Take a step's mean gradient (shard_elements,); without `momentum` the caller updates the momentum."""
        first, second = self._settings.betas
        if momentum:
            self.exp_avg *= np.float32(first)
            self.exp_avg += np.float32(1 - first) * gradient
            if self.frozen:
                self.exp_avg[~self.mask] = 0
        if self.frozen:
            self._take_frozen(gradient)
        else:
            self.exp_avg_sq *= np.float32(second)
            self.exp_avg_sq += np.float32(1 - second) * np.square(gradient)

    def freeze(self, step: int, blocks: Segments, elements: npt.NDArray[np.int64]) -> None:
        """Freeze the variance after this step.

        `blocks`: the shard's pieces, cut at the edges of blocks; `elements`: the sizes of all blocks.
        """
        self.exp_avg_sq /= np.float32(1 - self._settings.betas[1] ** step)
        sums = np.zeros(len(elements), np.float32)
        for number, place in blocks:
            sums[number] += self.exp_avg_sq[place].sum(dtype=np.float64)
        means = self._gather(sums).sum(0, dtype=np.float64) / elements
        for number, place in blocks:
            values = self.exp_avg_sq[place]
            least = np.float32(self._settings.variance_floor**2 * means[number])
            values[...] = np.where(values > 0, np.maximum(values, least), 0 if self._settings.mask else least)
        self.frozen = True

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether each element of the shard has a momentum: it had a gradient before the variance was frozen."""
        if not self._settings.mask:
            return np.ones(self.exp_avg_sq.shape, np.bool_)
        found: npt.NDArray[np.bool_] = self.exp_avg_sq > 0
        return found

    @abstractmethod
    def step(self, step: int, rate: float) -> None:
        """Make the `step`-th step, from 1."""

    @abstractmethod
    def _take_frozen(self, gradient: Floats) -> None:
        """Take a mean gradient after the variance was frozen."""

    def _direction(self, step: int) -> Floats:
        """Return momentum / sqrt(variance), bias-corrected; freeze() has already corrected a frozen variance."""
        first, second = self._settings.betas
        direction = np.sqrt(self.exp_avg_sq)
        if not self.frozen:
            direction /= np.float32(np.sqrt(1 - second**step))
        direction += np.float32(self._settings.eps)
        np.divide(self.exp_avg, direction, out=direction)
        direction /= np.float32(1 - first**step)
        return direction


class ShardAdam(ShardOptimizer):
    """Adam as torch.optim.Adam, or AdamW if weight_decay is decoupled; 1-bit Adam once the variance is frozen."""

    def step(self, step: int, rate: float) -> None:
        if self._settings.decoupled:
            self.parameters *= np.float32(1 - rate * self._settings.weight_decay)
        self.parameters -= np.float32(rate) * self._direction(step)

    def _take_frozen(self, gradient: Floats) -> None:
        """Do nothing: no state of 1-bit Adam depends on this gradient."""


class ShardLamb(ShardOptimizer):
    """LAMB (You et al., ICLR 2020); 1-bit LAMB once the variance is frozen.

    With the variance each tensor's trust ratio is frozen too, at its moving average.  The frozen trust ratio is
    multiplied by a factor: the largest ratio of the frozen sqrt(variance) to the square root of a second variance,
    which is still updated.  DeepSpeed's scaling of momenta is not needed, because blocks have separate steps.
    """

    def __init__(
        self,
        settings: ZeroSettings,
        parameters: Floats,
        *,
        exp_avg: Floats,
        tensors: Segments,
        count: int,
        gather: Gather,
    ) -> None:
        super().__init__(settings, parameters, exp_avg=exp_avg, tensors=tensors, count=count, gather=gather)
        self._frozen_ratio: Floats64 = np.zeros(count)
        self._factor: Floats64 = np.ones(count)
        self._fresh: Floats | None = None

    @property
    def arrays(self) -> dict[str, Floats]:
        return super().arrays if self._fresh is None else super().arrays | {"fresh": self._fresh}

    @property
    def shared(self) -> dict[str, Floats64]:
        return {"frozen_ratio": self._frozen_ratio, "factor": self._factor}

    def resume_frozen(self) -> None:
        super().resume_frozen()
        self._fresh = np.zeros_like(self.exp_avg_sq)

    def freeze(self, step: int, blocks: Segments, elements: npt.NDArray[np.int64]) -> None:
        super().freeze(step, blocks, elements)
        self._fresh = self.exp_avg_sq.copy()

    def step(self, step: int, rate: float) -> None:
        update = self._direction(step)
        before = self._sums(update) if self.frozen else None
        if self._settings.weight_decay:
            update += np.float32(self._settings.weight_decay) * self.parameters
        ratios = self._ratios(update) if before is None else self._frozen_ratios(before, update)
        for number, place in self._tensors:
            self.parameters[place] -= np.float32(rate * ratios[number]) * update[place]

    def _take_frozen(self, gradient: Floats) -> None:
        assert self._fresh is not None
        second = self._settings.betas[1]
        self._fresh *= np.float32(second)
        self._fresh += np.float32(1 - second) * np.square(gradient)

    def _ratios(self, update: Floats) -> Floats64:
        """Return each tensor's trust ratio."""
        parts = np.stack([self._sums(self.parameters), self._sums(update)])
        weights, updates = np.sqrt(self._gathered(parts).sum(0))
        known = (weights > 0) & (updates > 0)
        ratios = np.where(known, np.clip(weights / np.where(known, updates, 1), *COEFFICIENT), 1.0)
        self._frozen_ratio = COEFFICIENT_BETA * self._frozen_ratio + (1 - COEFFICIENT_BETA) * ratios
        return ratios

    def _frozen_ratios(self, before: Floats64, update: Floats) -> Floats64:
        """Return each tensor's trust ratio after freezing, which does not depend on the parameters."""
        assert self._fresh is not None
        eps, shares = self._settings.eps, np.zeros(self._count)
        for number, place in self._tensors:
            share = (np.sqrt(self.exp_avg_sq[place]) + eps) / (np.sqrt(self._fresh[place]) + eps)
            shares[number] = max(shares[number], share.max())
        gathered = self._gathered(np.stack([shares, before, self._sums(update)]))
        factor = gathered[:, 0].max(0)
        if self._settings.weight_decay:
            plain, decayed = np.sqrt(gathered[:, 1:].sum(0))
            share = np.where(decayed > 0, np.minimum(1.0, plain / np.where(decayed > 0, decayed, 1)), 1.0)
            factor = factor * share + (1 - share)
        factor = np.clip(factor, *FACTOR)
        self._factor = np.clip(factor, self._factor * (1 - FACTOR_CHANGE), self._factor * (1 + FACTOR_CHANGE))
        return self._frozen_ratio * self._factor

    def _sums(self, values: Floats) -> Floats64:
        """Return the sums of squares of this shard's values, by tensor."""
        sums = np.zeros(self._count)
        for number, place in self._tensors:
            sums[number] += np.square(values[place], dtype=np.float64).sum()
        return sums

    def _gathered(self, own: Floats64) -> Floats64:
        """Return all workers' arrays, by rank."""
        return self._gather(own.astype(np.float32)).astype(np.float64)
