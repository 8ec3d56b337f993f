"""Means in fewer than 32 bits of an element, of which what is left over stays with the worker (worker_error)."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats
from kofn.host.collectives.in_network import InNetwork
from kofn.host.errors import ZeroError
from kofn.host.zero.shards import Shards
from kofn.results.memory import Memory

LIMIT_S = 600.0
"""Of one call; a communicator says much earlier who is missing."""


class CompressedMean(Protocol):
    """compressed_allreduce, as DeepSpeed names it."""

    block_elements: int
    """So many neighbours share a scale."""

    def all_reduce(self, values: Floats) -> Floats:
        """The mean of all workers' values (elements,), the same at all; what it leaves over goes with the next one."""

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        """The same, of this worker's shard alone (shard_elements,)."""

    @property
    def late(self) -> npt.NDArray[np.bool_] | None:
        """Where the values of the last call wait as a whole, (elements,): their blocks closed without this worker.

        None: nowhere.
        """

    @property
    def memory(self) -> Memory:
        """What keeps what is left over, and what is on its way."""


class SwitchMean:
    """By elastic calls of an InNetwork, in the lanes of its codec; the ledger keeps what is left over."""

    def __init__(self, communicator: InNetwork, elements: int) -> None:
        self._communicator, self._elements = communicator, elements
        self.block_elements = communicator.block_elements

    def all_reduce(self, values: Floats) -> Floats:
        outcome = self._communicator.all_reduce(values, op="mean", elastic=True).wait(LIMIT_S)
        if outcome.skipped:
            raise ZeroError(
                f"worker {self._communicator.rank} has missed {len(outcome.skipped)} steps that others made without its"
                " shard: all workers take part in every step, late or not"
            )
        return outcome.value

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        """All means come down until there is an elastic reduce-scatter; this is the only place that knows."""
        return shards.cut(self.all_reduce(values), self._communicator.rank)

    @property
    def late(self) -> npt.NDArray[np.bool_] | None:
        blocks = self._communicator.agent.ledger.waiting > 0
        if not blocks.any():
            return None
        return np.repeat(blocks, self.block_elements)[: self._elements]

    @property
    def memory(self) -> Memory:
        return self._communicator.agent.memory
