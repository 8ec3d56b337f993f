"""Means with fewer than 32 bits per element; the encoding error stays at the worker (worker_error)."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kofn_common.results.memory import Memory
from kofn_host.agent.pending import Pending, enter_pending, pending_after
from kofn_host.arrays import Arrays, Floats, Floats64, Integers
from kofn_host.collectives.in_network import InNetwork
from kofn_host.collectives.work import Work
from kofn_host.compression.summary_block import Magnitudes
from kofn_host.errors import ZeroError
from kofn_host.zero.shards import Shards

LIMIT_S = 600.0
"""The time limit of a call; a communicator reports a missing worker much earlier."""


class CompressedMean(Protocol):
    """An all-reduce with few bits, such as DeepSpeed's compressed_allreduce."""

    block_elements: int
    """The number of neighbouring elements that share a scale."""

    apart: bool
    """Whether a block of reduce_scatter() belongs to one shard, and shards take turns; if not, shards share blocks."""

    def all_reduce(self, values: Floats) -> Floats:
        """Return the mean of all workers' values (elements,), the same at every worker.

        The encoding error enters the next call.
        """

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        """Return the mean of this worker's shard only, (shard_elements,)."""

    @property
    def late(self) -> npt.NDArray[np.bool_] | None:
        """Whether this worker's value of each element waits, (elements,); None if no value waits.

        A value waits if its block closed without this worker in the last call.
        """

    @property
    def memory(self) -> Memory:
        """The memory of encoding errors and of contributions on their way."""


class SwitchMean:
    """A CompressedMean by elastic calls of an InNetwork; the ledger keeps the encoding error.

    If the communicator has rows, reduce_scatter() is an elastic reduce-scatter; otherwise it is an all-reduce from
    which the shard is cut.
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

    def state(self, shards: Shards) -> Arrays:
        """Return the values that are in no mean yet; no call may be under way.

        "pending", (elements,): the values, in units of 2**-40; "weights", (elements,): the weights of waiting
        gradients, in 1 / WEIGHT_UNIT; missing if no gradient waits.  A training that continues with the same number of
        workers also needs "padding", the values between the elements, on which the blocks' scales depend, and
        "expected", (2, blocks), the magnitudes that the next call expects.
        """
        agent = self._communicator.agent
        found = pending_after(agent, agent.iteration - 1)
        assert found is not None  # no worker is in the next step
        places = self._places(shards)
        flat = found.values.reshape(-1)
        state: Arrays = {"pending": flat[places], "padding": np.delete(flat, places)}
        if found.weights.any():
            state["weights"] = np.repeat(found.weights.astype(np.int32), self.block_elements)[places]
        if (expected := agent.encoder.plan.expected) is not None:
            state["expected"] = np.stack([expected.mean, expected.largest])
        return state

    def enter(self, states: Sequence[Arrays], expected: Floats64 | None, shards: Shards, *, alike: bool) -> None:
        """Take over some workers' pending values before the first call.

        `alike`: the states come from a training with the same number of workers.
        """
        layout, places = self._communicator.agent.encoder.coding.layout, self._places(shards)
        laid: Integers = np.zeros((2, layout.blocks * layout.elements), np.int64)
        between = np.delete(np.arange(laid.shape[1]), places)
        for state in states:
            laid[0, places] += state["pending"].astype(np.int64)
            laid[1, places] += state.get("weights", np.zeros(1)).astype(np.int64)
            if alike and state["padding"].size == between.size:
                laid[0, between] = state["padding"]
        values, weights = laid.reshape(2, layout.blocks, layout.elements)
        magnitudes = None
        if alike and expected is not None and expected.shape == (2, layout.blocks):
            magnitudes = Magnitudes(mean=expected[0], largest=expected[1])
        enter_pending(self._communicator.agent, Pending(values, weights.max(1)), magnitudes)

    def _places(self, shards: Shards) -> Integers:
        """Return the places of all elements in the ledger, (elements,)."""
        numbers = np.arange(self._elements)
        if self._communicator.rows is None:
            return numbers
        laid = self._communicator.rows.laid(shards.rows(numbers + 1))  # 0: no element
        places = np.empty(self._elements, np.int64)
        places[laid[laid > 0] - 1] = np.flatnonzero(laid)
        return places

    @property
    def memory(self) -> Memory:
        return self._communicator.agent.memory
