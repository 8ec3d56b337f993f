"""The layout of an elastic reduce-scatter's rows in blocks: each block's sum has one recipient.

The rows take turns: block b has the next elements of row (b modulo `workers`), and zeros after the row's end.  So the
sums that a worker receives are spread over the whole call.  A sum of votes has at most as many planes as there are
workers, so the sums that a worker receives never take more of its link than the votes that it sends.
"""

from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from kofn_common.config.compress import CompressSection
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import EVERYONE
from kofn_host.arrays import Floats, Integers
from kofn_host.compression.job_coding import JobCoding

T = TypeVar("T", bound=np.generic)


def may_be_apart(apart: int, together: int) -> bool:
    """Return whether `apart` blocks of one row each are at most an eighth more than `together` shared blocks."""
    return 8 * apart <= 9 * together


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Rows of up to `columns` elements, one per worker, in blocks of `block` elements.

    >>> rows = BlockRows(workers=2, columns=3, block=2)
    >>> rows.laid(np.arange(6, dtype=np.float32).reshape(2, 3))
    array([0., 1., 3., 4., 2., 0., 5., 0.], dtype=float32)
    >>> rows.row(rows.laid(np.arange(6, dtype=np.float32).reshape(2, 3)), 1)
    array([3., 4., 5.], dtype=float32)
    """

    workers: int
    columns: int
    block: int

    @classmethod
    def of(cls, job: JobSection, compress: CompressSection, columns: int) -> Self:
        """Return the rows in the blocks of a job's elastic calls."""
        coding = JobCoding.of(job, compress, columns * job.workers)
        return cls(workers=job.workers, columns=columns, block=coding.layout.elements)

    @property
    def blocks(self) -> int:
        return self.workers * -(-self.columns // self.block)

    @property
    def elements(self) -> int:
        """Elements of all blocks."""
        return self.blocks * self.block

    def laid(self, rows: npt.NDArray[T]) -> npt.NDArray[T]:
        """Return rows (workers, up to `columns`) as they are sent, (elements,)."""
        whole, rest = divmod(rows.shape[1], self.block)
        laid = np.zeros((self.blocks // self.workers, self.workers, self.block), rows.dtype)
        end = whole * self.block
        laid[:whole] = rows[:, :end].reshape(self.workers, whole, self.block).swapaxes(0, 1)
        if rest:
            laid[whole, :, :rest] = rows[:, end:]
        return laid.reshape(-1)

    def row(self, laid: Floats, rank: int) -> Floats:
        """Return a worker's row, (columns,)."""
        return laid.reshape(-1, self.workers, self.block)[:, rank].reshape(-1)[: self.columns]

    def recipients(self, total: int) -> Integers:
        """Return the recipient of each of `total` blocks' sums, (total,); EVERYONE for blocks after the rows."""
        found = np.full(total, EVERYONE, np.int64)
        found[: self.blocks] = np.arange(self.blocks) % self.workers
        return found
