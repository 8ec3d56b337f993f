"""Means in fewer than 32 bits of an element, of which what is left over stays with the worker (worker_error)."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats
from kofn.host.collectives.in_network import InNetwork
from kofn.host.collectives.work import Work
from kofn.host.errors import ZeroError
from kofn.host.zero.shards import Shards
from kofn.results.memory import Memory

LIMIT_S = 600.0
"""Of one call; a communicator says much earlier who is missing."""


class CompressedMean(Protocol):
    """compressed_allreduce, as DeepSpeed names it."""

    block_elements: int
    """So many neighbours share a scale."""

    apart: bool
    """Whether reduce_scatter() has blocks of one shard each, in turn; else shards share them."""

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
    """By elastic calls of an InNetwork, in the lanes of its codec; the ledger keeps what is left over.

    With rows, reduce_scatter() is one, else an all-reduce of which the shard is cut out.
    """

    def __init__(self, communicator: InNetwork, elements: int) -> None:
        self._communicator, self._elements = communicator, elements
        self.block_elements, self.apart = communicator.block_elements, communicator.rows is not None

    def all_reduce(self, values: Floats) -> Floats:
        return self._outcome(self._communicator.all_reduce(values, op="mean", elastic=True))

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        rank = self._communicator.rank
        if not self.apart:
            return shards.cut(self.all_reduce(values), rank)
        row = self._outcome(self._communicator.reduce_scatter(shards.rows(values), op="mean", elastic=True))
        return shards.placed(row, rank)

    def _outcome(self, work: Work[Floats]) -> Floats:
        outcome = work.wait(LIMIT_S)
        if outcome.skipped:
            raise ZeroError(
                f"worker {self._communicator.rank} has missed {len(outcome.skipped)} steps that others made without its"
                " shard: all workers take part in every step, late or not"
            )
        return outcome.value

    @property
    def late(self) -> npt.NDArray[np.bool_] | None:
        blocks = self._communicator.agent.ledger.accounts.waiting > 0
        if not blocks.any():
            return None
        return np.repeat(blocks, self.block_elements)[: self._elements]

    @property
    def memory(self) -> Memory:
        return self._communicator.agent.memory
