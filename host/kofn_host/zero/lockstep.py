"""All workers of a sharded training in one process, in lockstep, with a thread per worker.

Encoders, ledgers and codecs are those of a real training.  Blocks are summed one after another in one slot of
protocol.slots.  There is no network; a seed decides which workers are late, so that a training is reproducible.
"""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.config.model import Average
from kofn_common.results.memory import Memory
from kofn_common.wire.packet import WORD_BYTES, Kind, KofnHeader
from kofn_host.arrays import Floats
from kofn_host.collectives.call import Array
from kofn_host.compression.aggregate import aggregate
from kofn_host.compression.codec import UNIT
from kofn_host.compression.encoder import Encoder
from kofn_host.compression.job_coding import JobCoding
from kofn_host.kernels.sample import norm2
from kofn_host.protocol.instructions import Packed
from kofn_host.protocol.results import BlockId, BlockResults, Result
from kofn_host.protocol.slots import Answer, NativeSlots
from kofn_host.zero.shards import Shards, Unit
from kofn_host.zero.two_sided import Bytes

T = TypeVar("T")

LIMIT_S = 120.0
"""The longest wait for the slowest worker."""


@dataclass
class Lockstep:
    """Exchanges data between `workers` threads."""

    workers: int
    given: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._barrier = threading.Barrier(self.workers)

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Run `work` for each rank in a thread; return the results by rank.  If a thread fails, all threads end."""

        def run_rank(rank: int) -> T:
            try:
                with np.errstate(all="ignore"):  # overflow is silent
                    return work(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(run_rank, rank) for rank in range(self.workers)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return [future.result() for future in futures]

    def all(self, rank: int, own: Any, join: Callable[[list[Any]], T]) -> T:
        """Every worker calls `join` with the list of all workers' `own`.  Return the result."""
        self.given[rank] = own
        self._barrier.wait(LIMIT_S)
        found = join([self.given[other] for other in range(self.workers)])
        self._barrier.wait(LIMIT_S)
        return found

    def once(self, rank: int, own: Any, join: Callable[[list[Any]], Sequence[T]]) -> T:
        """One worker calls `join` with the list of all workers' `own`.

        Return the item of the result that belongs to this rank.
        """
        self.given[rank] = own
        if self._barrier.wait(LIMIT_S) == 0:
            self.given = dict(enumerate(join([self.given[other] for other in range(self.workers)])))
        self._barrier.wait(LIMIT_S)
        found: T = self.given[rank]
        self._barrier.wait(LIMIT_S)
        return found


class Done:
    """A finished call."""

    def __init__(self, value: Floats) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Floats:
        return self._value


class LockstepCalls:
    """Implements ExactCalls, and ChunkExchange for the two-sided scheme.

    Means are computed in float64 and rounded once.
    """

    def __init__(self, team: Lockstep, rank: int) -> None:
        self.rank, self.workers, self._team = rank, team.workers, team

    def all_reduce(self, values: Floats) -> Floats:
        return self._team.all(self.rank, values, _mean)

    def reduce_scatter(self, values: Floats, unit: Unit) -> Done:
        rows = unit.padded(values, self.workers)
        return Done(self._team.all(self.rank, rows, lambda all: _mean([given[self.rank] for given in all])))

    def gather_unit(self, shard: Floats, unit: Unit, out: Floats) -> Done:
        out[...] = self._team.all(self.rank, shard[unit.in_shard], np.concatenate)
        return Done(out)

    def gather(self, values: Array) -> Array:
        return self._team.all(self.rank, values, np.stack)

    def broadcast(self, values: Floats) -> Floats:
        return self._team.all(self.rank, values, lambda all: all[0].copy())

    def all_to_all(self, rows: Bytes) -> Bytes:
        return self._team.all(self.rank, rows, lambda all: np.stack([given[self.rank] for given in all]))

    def all_gather(self, row: Bytes) -> Bytes:
        return self.gather(row)


def _mean(all: list[Floats]) -> Floats:
    return np.asarray(np.mean(all, axis=0, dtype=np.float64), np.float32)


class LockstepSwitch:
    """Sums arrays of `elements` numbers of k workers; `seed` decides which k workers are first in each iteration.

    `majority`: mean() returns the sign of each sum, times the quantisation step of the sum's block.
    """

    def __init__(
        self,
        team: Lockstep,
        elements: int,
        *,
        job: JobSection,
        compress: CompressSection,
        average: Average,
        k: int,
        seed: int,
        majority: bool = False,
    ) -> None:
        self.coding = JobCoding.of(job, compress, elements)
        self.encoders = [Encoder.of(self.coding, compress, rank) for rank in range(job.workers)]
        self._slots = NativeSlots.open(workers=job.workers, k=k, slots=1)
        self._team, self._average, self._k, self._majority = team, average, k, majority
        self._given2, self._expanding = 0.0, list[float]()
        self._random, self._iteration = np.random.default_rng([seed, 99]), 0

    @property
    def lost(self) -> float | None:
        """The L2 norm of what all workers lost by rounding residuals, divided by the L2 norm of all values given to
        mean(); None if residuals are exact.
        """
        if all(encoder.ledger.residual.exact for encoder in self.encoders):
            return None
        return math.sqrt(sum(encoder.ledger.residual.lost_norm**2 for encoder in self.encoders) / self._given2)

    @property
    def expanding(self) -> float | None:
        """The share of blocks whose quantisation step is too large (Encoding.expanding), without the first iteration.

        None if no iteration measured it.
        """
        return fmean(self._expanding) if self._expanding else None

    def mean(self, rank: int, values: Floats) -> Floats:
        return self._team.once(rank, values, self._iterate)

    def _iterate(self, given: list[Floats]) -> list[Floats]:
        self._iteration += 1
        for encoder, values in zip(self.encoders, given, strict=True):
            self._given2 += norm2(values)
            encoder.begin(self._iteration)
            encoder.enter(values, self._iteration)
            encoder.encode(self._iteration)
        in_time = self._random.permutation(len(given))[: self._k].tolist()
        results = BlockResults.of([self._sum(block, in_time) for block in self.encoders[0].blocks])
        return [self._end(rank, results) for rank in range(len(given))]

    def _sum(self, block: int, in_time: Sequence[int]) -> Result:
        for rank in in_time:
            answers = self._contribute(rank, block, self.encoders[rank].packed(block))
            if answers and answers[0][1].kind == Kind.FORMAT_MISMATCH:
                (_, slot, _), *_ = answers
                again = self.encoders[rank].reencode(block, self._iteration, slot.scale, slot.lanes)
                answers = self._contribute(rank, block, again)
        (_, header, values), *_ = answers
        return Result(
            id=BlockId(self._iteration, block),
            scale=header.scale,
            lanes=header.lanes,
            k=header.k,
            count=header.count,
            weight=header.weight,
            members=header.members,
            values=values,
        )

    def _contribute(self, rank: int, block: int, packed: Packed) -> list[Answer]:
        header = KofnHeader(
            worker=rank,
            lanes=packed.lanes,
            words=len(packed.values) // WORD_BYTES,
            iteration=self._iteration,
            block=block,
            scale=packed.scale,
            weight=packed.weight,
        )
        return self._slots.handle(header, packed.values)

    def _end(self, rank: int, results: BlockResults) -> Floats:
        """End the iteration for a worker; return the iteration's mean."""
        encoder = self.encoders[rank]
        encoder.settle(results, np.full(len(results), -1), np.zeros(len(results)))
        finished = encoder.follow(results, 0)
        if finished.encoding is not None and finished.encoding.expanding is not None and self._iteration > 1:
            self._expanding.append(finished.encoding.expanding)
        done = aggregate(finished, self.coding, rank=rank, average=self._average)
        if not self._majority:
            return done.mean
        blocks = results.below(self.coding.layout.blocks)
        steps = np.repeat(2.0 ** -blocks.numbers("scale"), self.coding.layout.elements)[: done.mean.size]
        signs: Floats = (np.sign(done.mean) * steps).astype(np.float32)
        return signs


class LockstepMean:
    """A worker's CompressedMean over a LockstepSwitch."""

    apart = False

    def __init__(self, switch: LockstepSwitch, rank: int) -> None:
        self.block_elements = switch.coding.layout.elements
        self._switch, self._rank, self._elements = switch, rank, switch.coding.elements
        self._ledger = switch.encoders[rank].ledger

    def all_reduce(self, values: Floats) -> Floats:
        return self._switch.mean(self._rank, values)

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        return shards.cut(self.all_reduce(values), self._rank)

    @property
    def late(self) -> npt.NDArray[np.bool_] | None:
        blocks = self._ledger.accounts.waiting > 0
        return np.repeat(blocks, self.block_elements)[: self._elements] if blocks.any() else None

    @property
    def memory(self) -> Memory:
        return self._ledger.accounts.memory

    @property
    def residual(self) -> float:
        """The mean magnitude of pending values."""
        return float(np.abs(self._ledger.residual.pending).mean() * UNIT)
