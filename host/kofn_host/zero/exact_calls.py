"""The exact calls of a sharded training: gathering shards, means for their owners, and small arrays."""

from typing import Protocol, TypeVar

from kofn_host.arrays import Floats
from kofn_host.collectives.call import Array
from kofn_host.collectives.communicator import Communicator
from kofn_host.collectives.work import Work
from kofn_host.zero.compressed_mean import LIMIT_S
from kofn_host.zero.shards import Unit

T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """A call under way."""

    def result(self, timeout: float | None = None) -> T_co: ...


class ExactCalls(Protocol):
    """Calls of worker `rank` of `workers`; calls that return a Pending must have the same order at all workers."""

    rank: int
    workers: int

    def all_reduce(self, values: Floats) -> Floats:
        """Return the mean (elements,)."""

    def reduce_scatter(self, values: Floats, unit: Unit) -> Pending[Floats]:
        """Begin the mean of a unit's values (size,); this worker receives its part of the mean (chunk,)."""

    def gather_unit(self, shard: Floats, unit: Unit, out: Floats) -> Pending[Floats]:
        """Begin to gather a unit's elements of all shards in `out`, (workers * chunk,)."""

    def gather(self, values: Array) -> Array:
        """Return all workers' arrays, (workers, ...), by rank."""

    def broadcast(self, values: Array) -> Array:
        """Return worker 0's array."""


class CommunicatorCalls:
    """ExactCalls over a Communicator."""

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.workers = communicator.rank, communicator.workers
        self._communicator = communicator

    def all_reduce(self, values: Floats) -> Floats:
        return self._communicator.all_reduce(values, op="mean").result(LIMIT_S)

    def reduce_scatter(self, values: Floats, unit: Unit) -> Work[Floats]:
        rows = unit.padded(values, self.workers)
        return self._communicator.reduce_scatter(rows, op="mean", name=f"mean {unit.begin}")

    def gather_unit(self, shard: Floats, unit: Unit, out: Floats) -> Work[Floats]:
        rows = out.reshape(self.workers, unit.chunk)
        return self._communicator.all_gather(shard[unit.in_shard], out=rows, name=f"unit {unit.begin}")

    def gather(self, values: Array) -> Array:
        return self._communicator.all_gather(values).result(LIMIT_S)

    def broadcast(self, values: Array) -> Array:
        return self._communicator.broadcast(values).result(LIMIT_S)
