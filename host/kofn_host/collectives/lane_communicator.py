"""Collectives over a network that only sums all workers' blocks of 32-bit lanes, modulo 2**32 (exact_lanes.py)."""

from abc import abstractmethod

import numpy as np

from kofn_host.collectives.call import FLOATING, Array, CollectiveCall
from kofn_host.collectives.communicator import Task
from kofn_host.collectives.exact_lanes import (
    Bytes,
    FixedPoint,
    Int32,
    Int64,
    LaneCoding,
    LaneSum,
    check_finite,
    exponents_of,
    floats_of,
)
from kofn_host.collectives.peers import PeerCommunicator

SUMS = ("all_reduce", "reduce_scatter")


class LaneCommunicator(PeerCommunicator):
    """A PeerCommunicator that expresses every call as one sum of lanes.

    The workers agree on each call before they carry it out.  With this agreement they exchange exponents, which
    determine the scale of a floating sum's blocks.
    """

    @property
    @abstractmethod
    def _lanes(self) -> int:
        """Lanes of a block."""

    def _row_blocks(self, task: Task, per_block: int) -> int:
        """Return the number of blocks that each worker alone receives; 0: all workers receive all blocks."""
        return 0

    def _check(self, call: CollectiveCall, given: Array) -> None:
        super()._check(call, given)
        if call.kind in SUMS and call.dtype in FLOATING:
            check_finite(given)

    def _note(self, task: Task) -> bytes:
        """Return the exponents of a floating sum's values."""
        if task.call.kind not in SUMS or task.call.dtype not in FLOATING:
            return b""
        return exponents_of(floats_of(self._summed(task, self._lanes)), self._lanes)

    def _lane_sum(self, task: Task) -> LaneSum:
        coding = self._coding(task)
        row_blocks = self._row_blocks(task, coding.per_block)
        row = row_blocks * coding.per_block or task.out.size
        return LaneSum(
            coding=coding,
            source=self._summed(task, coding.per_block),
            target=task.out.reshape(-1),
            begin=self.rank * row if task.call.kind == "reduce_scatter" else 0,
            row_blocks=row_blocks,
        )

    def _summed(self, task: Task, per_block: int) -> Array:
        """Return the flat values that a call sums."""
        flat, row = np.ascontiguousarray(task.given).reshape(-1), self._row_blocks(task, per_block) * per_block
        if row in (0, task.out.size):
            return flat
        rows = np.zeros((self.workers, row), flat.dtype)
        rows[:, : task.out.size] = flat.reshape(self.workers, -1)
        return rows.reshape(-1)

    def _among_zeros(self, task: Task) -> LaneSum:
        """Return an all-gather or a broadcast as a sum, with zeros from the other workers."""
        source = np.zeros(task.out.shape, task.out.dtype)
        if task.call.root is None:
            source[self.rank] = task.given
        elif task.call.root == self.rank:
            source[...] = task.given
        flat, out = source.reshape(-1), task.out.reshape(-1)
        return LaneSum(coding=Bytes(self._lanes), source=flat.view(np.uint8), target=out.view(np.uint8))

    def _coding(self, task: Task) -> LaneCoding:
        match task.call.dtype:
            case "int32":
                return Int32(self._lanes)
            case "int64":
                return Int64(self._lanes)
        blocks = self.workers * self._row_blocks(task, self._lanes) or -(-task.given.size // self._lanes)
        divisor = self.workers if task.call.op == "mean" else 1
        return FixedPoint(self._lanes, blocks, task.note, self.workers, divisor)
