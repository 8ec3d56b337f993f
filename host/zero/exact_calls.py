"""What goes over a Communicator exactly: shards to everybody, means to their owners, small arrays to all."""

from kofn.host.arrays import Floats
from kofn.host.collectives.call import Array
from kofn.host.collectives.communicator import Communicator
from kofn.host.collectives.work import Work
from kofn.host.zero.compressed_mean import LIMIT_S
from kofn.host.zero.shards import Unit


class ExactCalls:
    """Calls of one worker; units are named by what is done with them, so that they may come in any order."""

    def __init__(self, communicator: Communicator) -> None:
        self.rank, self.workers = communicator.rank, communicator.workers
        self._communicator = communicator

    def all_reduce(self, values: Floats) -> Floats:
        """The mean (elements,)."""
        return self._communicator.all_reduce(values, op="mean").result(LIMIT_S)

    def reduce_scatter(self, values: Floats, unit: Unit) -> Work[Floats]:
        """The mean of a unit's values (size,), of which this worker gets its own (chunk,)."""
        rows = unit.padded(values, self.workers)
        return self._communicator.reduce_scatter(rows, op="mean", name=f"mean {unit.begin}")

    def gather_unit(self, shard: Floats, unit: Unit, out: Floats) -> Work[Floats]:
        """A unit's elements to `out`, (workers * chunk,), of which the last may be nobody's."""
        rows = out.reshape(self.workers, unit.chunk)
        return self._communicator.all_gather(shard[unit.in_shard], out=rows, name=f"unit {unit.begin}")

    def gather(self, values: Array) -> Array:
        """All workers' arrays, by rank (workers, ...)."""
        return self._communicator.all_gather(values).result(LIMIT_S)
