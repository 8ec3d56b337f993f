"""The three stages of ZeRO: the data and the calls of a step.

    stage 1   mean gradient or momentum: all-reduce; each worker steps its shard; all-gather of parameters
    stage 2   gradients: reduce-scatter to their owners, which keep the momentum; all-gather of parameters
    stage 3   as stage 2, layer by layer; parameters are gathered before each pass, and discarded after it

With one bit, workers vote on the momentum in stage 1 (1-bit Adam): every worker has the whole momentum, and contributes

    x = beta * momentum + (1 - beta) * gradient

If x is late for a block, it waits in the ledger for the next sum.  The closed sum already had beta * momentum from the
other workers, so the late worker subtracts its beta * momentum from its next x in this block: only the gradient's part
of the late x remains.
"""

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kofn_common.results.memory import Memory
from kofn_host.arrays import Arrays, Floats
from kofn_host.errors import ZeroError
from kofn_host.zero.compressed_mean import LIMIT_S, CompressedMean
from kofn_host.zero.exact_calls import ExactCalls, Pending
from kofn_host.zero.settings import ZeroSettings
from kofn_host.zero.shard_optimizer import ShardAdam, ShardLamb, ShardOptimizer
from kofn_host.zero.shards import Shards

log = logging.getLogger(__name__)

STILL = 0.01
"""The greatest share of parameters without a gradient that causes no warning."""

OPTIMIZERS: dict[str, type[ShardOptimizer]] = {"adam": ShardAdam, "lamb": ShardLamb}


class ZeroOptimizer:
    """One worker's part of a training: put() every unit's gradient, then step(), then gather() every unit.

        for unit, gradient in backward():
            zero.put(unit, gradient)
        zero.step(rate)
        parameters = zero.gathered()

    `parameters`: flat, the same at all workers; in stage 1 they are gathered in this array.  `units`: each unit's
    tensor sizes; stage 1 has one unit.  `compressed`: the mean for 8 bits or 1 bit.  ZeroError if a unit is put twice,
    or not at all.
    """

    def __init__(
        self,
        settings: ZeroSettings,
        parameters: Floats,
        units: Sequence[Sequence[int]],
        calls: ExactCalls,
        compressed: CompressedMean | None = None,
    ) -> None:
        self.settings, self.steps = settings, 0
        self.shards = shards = Shards([sum(tensors) for tensors in units], calls.workers)
        _check(settings, parameters, shards, compressed)
        self.rank, self._calls, self._compressed = calls.rank, calls, compressed
        self._parameters = parameters
        self._momentum = _Momentum(shards, self.rank) if settings.votes_on_momentum else None
        tensors = [size for unit in units for size in unit]
        edges = [*accumulate(tensors, initial=0)]
        self.shard = shards.cut(parameters, self.rank)
        """This worker's shard of the parameters, (shard_elements,)."""
        self._tensors = [*shards.segments(self.rank, edges)]
        self._optimizer = OPTIMIZERS[settings.optimizer](
            settings,
            self.shard,
            exp_avg=np.zeros_like(self.shard) if self._momentum is None else self._momentum.own,
            tensors=self._tensors,
            count=len(tensors),
            gather=self._calls.gather,
        )
        self._gradient: Floats | None = None  # the whole gradient, if it leaves as a whole
        self._arriving = dict[int, Pending[Floats]]()  # this worker's part of units that leave one by one
        self._put = set[int]()

    # -- gradients

    def put(self, unit: int, gradient: Floats) -> None:
        """Put a unit's gradient (size,); the array may be reused at once."""
        place = self.shards.units[unit]
        if unit in self._put:
            raise ZeroError(f"a unit must get one gradient a step, got a second one for unit {unit}")
        if gradient.shape != (place.size,):
            raise ZeroError(f"the gradient of unit {unit} must have shape ({place.size},), got {gradient.shape}")
        self._put.add(unit)
        if self.settings.stage > 1 and not self._now_compressed:
            self._gradient = None
            self._arriving[unit] = self._calls.reduce_scatter(gradient, place)
            return
        if self._gradient is None:
            self._gradient = np.zeros(self.shards.elements, np.float32)
        self._gradient[place.begin : place.end] = gradient

    @property
    def missing(self) -> list[int]:
        """The units without a gradient in this step."""
        return sorted({*range(len(self.shards.units))} - self._put)

    @property
    def _now_compressed(self) -> bool:
        return self.settings.compresses(self.steps + 1)

    # -- a step

    def step(self, rate: float) -> None:
        """Update the shard by the mean gradient at this learning rate; then the parameters must be gathered."""
        if missing := self.missing:
            raise ZeroError(f"units {missing} have no gradient in step {self.steps + 1}: all need one")
        if self._momentum is not None and self._now_compressed:
            self._vote_on_momentum(self._momentum)
        elif self._momentum is not None:
            self._warm_up(self._momentum)
        else:
            self._optimizer.take(self._decayed(self._own_mean()))
        self.steps += 1
        self._put.clear()
        self._optimizer.step(self.steps, rate)
        if self.settings.bits == 1 and self.steps == self.settings.freeze_step:
            self._freeze()

    def _own_mean(self) -> Floats:
        """Return this worker's shard of the mean gradient."""
        if self._arriving:
            mean = np.empty(self.shards.shard_elements, np.float32)
            for unit, work in self._arriving.items():
                mean[self.shards.units[unit].in_shard] = work.result(LIMIT_S)
            self._arriving.clear()
            return mean
        assert self._gradient is not None
        if not self._now_compressed:
            return self.shards.cut(self._calls.all_reduce(self._gradient), self.rank)
        assert self._compressed is not None
        if self.settings.stage == 1:
            return self.shards.cut(self._compressed.all_reduce(self._gradient), self.rank)
        return self._compressed.reduce_scatter(self._gradient, self.shards)

    def _decayed(self, gradient: Floats) -> Floats:
        """Return the shard's gradient, plus Adam's weight decay."""
        settings = self.settings
        if not settings.weight_decay or settings.decoupled or settings.optimizer == "lamb":
            return gradient
        return gradient + np.float32(settings.weight_decay) * self.shard

    def _warm_up(self, momentum: "_Momentum") -> None:
        """Update the whole momentum in full precision."""
        assert self._gradient is not None
        mean = self._calls.all_reduce(self._decayed_whole(self._gradient))
        momentum.add(mean, self.settings.betas[0])
        self._optimizer.take(self.shards.cut(mean, self.rank), momentum=False)

    def _vote_on_momentum(self, momentum: "_Momentum") -> None:
        assert self._compressed is not None
        assert self._gradient is not None
        beta, before = np.float32(self.settings.betas[0]), momentum.own.copy()
        before *= beta
        given = momentum.given(self._decayed_whole(self._gradient), beta)
        mean = self._compressed.all_reduce(given)
        momentum.replace(mean, beta, self._compressed.late)
        gradient = momentum.own - before
        gradient /= 1 - beta
        self._optimizer.take(gradient, momentum=False)

    def _decayed_whole(self, gradient: Floats) -> Floats:
        """Add Adam's weight decay to the gradient of all parameters."""
        settings = self.settings
        if settings.weight_decay and not settings.decoupled and settings.optimizer == "adam":
            gradient += np.float32(settings.weight_decay) * self._parameters
        return gradient

    def _freeze(self) -> None:
        assert self._compressed is not None
        blocks = self.shards.own_blocks if self._compressed.apart else self.shards.shared_blocks
        self._optimizer.freeze(self.steps, *blocks(self.rank, self._compressed.block_elements))
        self._warn_of_still_parameters()
        if self._momentum is not None:
            (unit,) = self.shards.units
            bits = np.packbits(self._optimizer.mask)
            words = np.frombuffer(bits.tobytes().ljust(-(-bits.size // 4) * 4, b"\0"), np.int32)
            gathered = self._calls.gather(words).view(np.uint8)
            rows = np.unpackbits(gathered, axis=1, count=unit.chunk)
            self._momentum.masked = np.flatnonzero(rows.reshape(-1)[: unit.size] == 0)

    def _warn_of_still_parameters(self) -> None:
        moving = np.concatenate([self._optimizer.mask[place] for _, place in self._tensors] or [np.ones(0, np.bool_)])
        if (still := moving.size - int(moving.sum())) > STILL * moving.size:
            log.warning(
                "%d of worker %d's %d parameters had no gradient in the first %d steps: with one bit they do not"
                " change; a larger freeze_step trains them",
                *(still, self.rank, moving.size, self.steps),
            )

    # -- the state between two steps

    def state(self) -> tuple[Arrays, Arrays]:
        """Return copies of this worker's arrays, and of the arrays that all workers share.

        This worker's arrays are those of its shard, (shard_elements,), and "late", (elements,), the momentum that waits
        in this worker's ledger.
        """
        own: Arrays = {name: array.copy() for name, array in self._of_shard.items()}
        shared: Arrays = {name: array.copy() for name, array in self._optimizer.shared.items()}
        if self._momentum is not None:
            shared |= {"momentum": self._momentum.all.copy(), "masked": self._momentum.masked.copy()}
            if self._momentum.late is not None:
                own["late"] = self._momentum.late.copy()
        return own, shared

    def resume(self, steps: int, workers: int, own: Mapping[int, Arrays], shared: Arrays, taken: Sequence[int]) -> None:
        """Continue a training of `workers` workers after its first `steps` steps.

        `own`, `shared`: the arrays of state(); `own` by rank, for the ranks that needs() returns.  `taken`: the ranks
        whose ledgers this worker has taken over.
        """
        before = self._shards_of(workers)
        if self.settings.bits == 1 and steps >= self.settings.freeze_step:
            self._optimizer.resume_frozen()
        for name, array in self._of_shard.items():
            flat = np.zeros(self.shards.elements, array.dtype)
            for rank, arrays in own.items():
                for there, here in before.parts(rank):
                    flat[there] = arrays[name][here]
            array[...] = self.shards.cut(flat, self.rank)
        for name, values in self._optimizer.shared.items():
            values[...] = shared[name]
        if self._momentum is not None:
            self._momentum.all[...], self._momentum.masked = shared["momentum"], shared["masked"].astype(np.int64)
            late = [own[rank]["late"] for rank in taken if "late" in own[rank]]
            self._momentum.late = np.sum(late, axis=0, dtype=np.float32) if late else None
        self.steps = steps

    def needs(self, workers: int) -> list[int]:
        """Return the ranks that have elements of this worker's shard in a state of `workers` workers."""
        before, mine = self._shards_of(workers), [there for there, _ in self.shards.parts(self.rank)]
        return [
            rank
            for rank in range(workers)
            if any(there.start < own.stop and own.start < there.stop for there, _ in before.parts(rank) for own in mine)
        ]

    def _shards_of(self, workers: int) -> Shards:
        return Shards([unit.size for unit in self.shards.units], workers)

    @property
    def _of_shard(self) -> dict[str, Floats]:
        """The shard's arrays by name, which change in place."""
        momentum = {} if self._momentum is not None else {"exp_avg": self._optimizer.exp_avg}
        return {"parameters": self.shard} | momentum | self._optimizer.arrays

    # -- parameters

    def gather(self, unit: int, out: Floats) -> Pending[Floats]:
        """Begin to gather a unit's parameters in `out`, (workers * chunk,), padded with zeros."""
        return self._calls.gather_unit(self.shard, self.shards.units[unit], out)

    def gathered(self) -> Floats:
        """Return all parameters (elements,)."""
        found, arriving = np.empty(self.shards.elements, np.float32), list[Pending[Floats]]()
        for number, unit in enumerate(self.shards.units):
            arriving.append(self.gather(number, np.empty(self.shards.workers * unit.chunk, np.float32)))
        for unit, work in zip(self.shards.units, arriving, strict=True):
            found[unit.begin : unit.end] = work.result(LIMIT_S).reshape(-1)[: unit.size]
        return found

    def memory(self) -> Memory:
        """Return this worker's memory, without the memory of its model."""
        momentum = self._optimizer.exp_avg if self._momentum is None else self._momentum.values
        own = Memory(
            parameters=self.shard.nbytes,
            gradients=0 if self._gradient is None else self._gradient.nbytes,
            optimizer=momentum.nbytes + sum(array.nbytes for array in self._optimizer.arrays.values()),
        )
        return own if self._compressed is None else own + self._compressed.memory


class _Momentum:
    """The whole momentum, `values`, (workers * chunk,).

    `own`: this worker's shard of the momentum; `all`: the momentum without padding; `masked`: elements that stay 0;
    `late`: the part of the momentum that waits in the ledger, (elements,), None if nothing waits.
    """

    def __init__(self, shards: Shards, rank: int) -> None:
        (unit,) = shards.units
        self.values: Floats = np.zeros(shards.workers * unit.chunk, np.float32)
        self.own = self.values[rank * unit.chunk : (rank + 1) * unit.chunk]
        self.masked: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.all = self.values[: unit.size]
        self.late: Floats | None = None

    def add(self, mean: Floats, beta: float) -> None:
        """Add a mean gradient (elements,)."""
        self.all *= np.float32(beta)
        self.all += np.float32(1 - beta) * mean

    def given(self, gradient: Floats, beta: np.float32) -> Floats:
        """Return this worker's vote, in the gradient's array."""
        gradient *= 1 - beta
        gradient += beta * self.all
        if self.late is not None:
            gradient -= self.late
        return gradient

    def replace(self, mean: Floats, beta: np.float32, late: npt.NDArray[np.bool_] | None) -> None:
        """Replace the momentum by the mean vote; `late`: elements where this worker's vote waits."""
        self.late = None if late is None else np.where(late, beta * self.all, np.float32(0))
        self.all[...] = mean
        self.all[self.masked] = 0


def _check(settings: ZeroSettings, parameters: Floats, shards: Shards, compressed: CompressedMean | None) -> None:
    if parameters.shape != (shards.elements,):
        raise ZeroError(f"parameters must have shape ({shards.elements},), got {parameters.shape}")
    if settings.stage == 1 and len(shards.units) != 1:
        raise ZeroError(f"stage 1 must have one unit, got {len(shards.units)}: all parameters are gathered at once")
    if (settings.bits < 32) != (compressed is not None):
        raise ZeroError(f"a CompressedMean must be given with bits 1 and 8, and only then, got bits = {settings.bits}")
