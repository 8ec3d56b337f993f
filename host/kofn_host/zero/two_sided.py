"""The baseline: DeepSpeed's compressed_allreduce, which quantises twice.

Workers exchange the signs of chunks.  A chunk's owner adds the chunk's mean to the previous error (server_error), and
sends the signs of that sum to all workers.  (Tang et al., ICML 2021; deepspeed/runtime/comm.)
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from kofn_common.results.memory import Memory
from kofn_host.arrays import Floats
from kofn_host.zero.shards import Shards

Bytes = npt.NDArray[np.uint8]


class ChunkExchange(Protocol):
    """The exchange of chunks between workers; `rank`, `workers`: this worker's place."""

    rank: int
    workers: int

    def all_to_all(self, rows: Bytes) -> Bytes:
        """Send row r of (workers, bytes) to worker r; return the others' rows for this worker, by rank."""

    def all_gather(self, row: Bytes) -> Bytes:
        """Return all workers' rows (bytes,), by rank (workers, bytes)."""


class TwoSidedMean:
    """A CompressedMean of `elements`."""

    late, apart = None, False

    def __init__(self, exchange: ChunkExchange, elements: int) -> None:
        whole = 8 * exchange.workers
        self.block_elements = elements  # all elements share one scale
        self._exchange, self._elements, self._padded = exchange, elements, -(-elements // whole) * whole
        self.worker_error = np.zeros(self._padded, np.float32)
        self.server_error = np.zeros(self._padded // exchange.workers, np.float32)

    def all_reduce(self, values: Floats) -> Floats:
        given = self.worker_error
        given[: self._elements] += values
        scale, positive = _quantise(given)
        chunks = np.packbits(positive).reshape(self._exchange.workers, -1)
        arrived = self._exchange.all_to_all(np.concatenate([_rows(scale, len(chunks)), chunks], axis=1))
        mean = _decoded(arrived).mean(0, dtype=np.float32)
        mean += self.server_error
        self.server_error = mean
        scale, positive = _quantise(mean)
        gathered = self._exchange.all_gather(np.concatenate([_rows(scale, 1)[0], np.packbits(positive)]))
        return _decoded(gathered).reshape(-1)[: self._elements]

    def reduce_scatter(self, values: Floats, shards: Shards) -> Floats:
        return shards.cut(self.all_reduce(values), self._exchange.rank)

    @property
    def memory(self) -> Memory:
        return Memory(residuals=self.worker_error.nbytes + self.server_error.nbytes)


def _quantise(values: Floats) -> tuple[np.float32, npt.NDArray[np.bool_]]:
    """Return the scale ||v|| / sqrt(d), and whether each value is >= 0; the values become the quantisation error."""
    scale = np.float32(np.sqrt(np.square(values, dtype=np.float64).mean()))
    positive: npt.NDArray[np.bool_] = values >= 0
    values -= np.where(positive, scale, -scale)
    return scale, positive


def _rows(scale: np.float32, rows: int) -> Bytes:
    """Return `rows` rows, each with the scale's bytes, (rows, 4)."""
    return np.tile(np.frombuffer(scale.tobytes(), np.uint8), (rows, 1))


def _decoded(rows: Bytes) -> Floats:
    """Return the values of rows; a row has a scale, then signs."""
    scales = np.ascontiguousarray(rows[:, :4]).view(np.float32)
    found: Floats = np.where(np.unpackbits(rows[:, 4:], axis=1) == 1, scales, -scales)
    return found
