"""Means with fewer than 32 bits per element; the encoding error stays at the worker (worker_error)."""

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
"""The time limit of a call; a communicator names a missing worker much earlier."""


class CompressedMean(Protocol):
    """DeepSpeed's compressed_allreduce."""

    block_elements: int
    """The number of neighbouring elements that share a scale."""

    apart: bool
    """Whether reduce_scatter() has blocks of one shard each, in turn; else shards share blocks."""

    def all_reduce(self, values: Floats) -> Floats:
        """Return the mean of all workers' values (elements,), the same at all; the error enters the next call."""

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        """Return the mean of this worker's shard only, (shard_elements,)."""

    @property
    def late(self) -> npt.NDArray[np.bool_] | None:
        """Whether each element's values wait, (elements,): its block closed without this worker in the last call.

        None: no values wait.
        """

    @property
    def memory(self) -> Memory:
        """The memory of encoding errors and of contributions on their way."""


class SwitchMean:
    """Uses elastic calls of an InNetwork, in the lanes of its codec; the ledger keeps the encoding error.

    With rows, reduce_scatter() is an elastic reduce-scatter; else it is an all-reduce from which the shard is cut.
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
                " shard: all workers must take part in every step, late or not"
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
