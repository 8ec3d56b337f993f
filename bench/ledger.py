"""The cost of a worker's ledger: processor time of one iteration, and memory.

    python -m bench.ledger
    python -m bench.ledger --elements 10000000 --lanes 8192 --repetitions 5 --json

`add`: a gradient is entered; `sending`: all that is pending is encoded and noted; `noted`: it is handed over as bytes,
packet by packet; `settle`: results are known, 32 at a time. Milliseconds of processor time, medians over iterations;
slices are those of the encoder. `bytes`: of memory for each element at most, without parts of a contribution that
are not used.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from bench.tables import Row, make_parser, say, show, whole
from kofn_host.compression.codecs.fixed_point import FixedPoint
from kofn_host.compression.encoder import SLICE
from kofn_host.compression.ledger import Ledger
from kofn_host.compression.ledger_native import Gradient
from kofn_host.compression.ledger_storage import LedgerStorage
from kofn_host.kernels.lanes import code_of

AT_ONCE = 32
"""Results."""

WARM_UP = 2
"""Iterations."""

STEPS = ("add", "sending", "noted", "settle")


class LedgerWorker:
    """One ledger, iteration by iteration; `taken_ns`: by step, in the current one."""

    def __init__(self, width: int, lanes: int, elements: int) -> None:
        self._blocks = -(-elements // lanes)
        self.storage = LedgerStorage.in_memory(blocks=self._blocks, lanes=lanes, width=width)
        self._code, self._slice = code_of(width), max(1, SLICE // lanes)
        self._ledger = Ledger(self.storage, 0, {self._code: FixedPoint(workers=4, width=width)})
        self._gradient = np.random.default_rng(1).laplace(0, 0.01, elements).astype(np.float32)
        self._scale, self._iteration = np.full(self._blocks, 10), 0
        self.taken_ns = dict.fromkeys(STEPS, 0)

    def iterate(self) -> None:
        """All of a gradient is sent, and all that was sent is in the sums."""
        self._iteration += 1
        self._ledger.begin(self._iteration)
        self.taken_ns = dict.fromkeys(STEPS, 0)
        for first in range(0, self._blocks, self._slice):
            self._send(np.arange(first, min(first + self._slice, self._blocks)))
        for first in range(0, self._blocks, AT_ONCE):
            blocks = np.arange(first, min(first + AT_ONCE, self._blocks))
            parts = np.ones_like(blocks)
            self._timed("settle", lambda: self._ledger.settle(self._iteration, blocks, parts))  # noqa: B023  # now
        assert not self._ledger.accounts.waiting.any()

    def _send(self, blocks: np.ndarray) -> None:
        ledger, iteration, numbers = self._ledger, self._iteration, blocks.tolist()
        self._timed("add", lambda: ledger.enter(Gradient.of(self._gradient, iteration), blocks))
        self._timed("sending", lambda: ledger.sending(iteration, blocks, self._code, self._scale))
        self._timed("noted", lambda: ledger.noted(numbers))

    def _timed(self, step: str, work: Callable[[], object]) -> None:
        begin = time.process_time_ns()
        work()
        self.taken_ns[step] += time.process_time_ns() - begin

    @property
    def bytes_an_element(self) -> float:
        storage = self.storage
        arrays = storage.records, storage.sent, storage.shifts, storage.pending, storage.packed[0]
        return sum(array.nbytes for array in arrays) / storage.pending.size


def measure(widths: Sequence[int], lanes: Sequence[int], elements: int, repetitions: int) -> list[Row]:
    """A row for each width of lanes and size of blocks."""
    rows = []
    for width in widths:
        for size in lanes:
            say(f"int{width}, blocks of {size} elements")
            worker, taken = LedgerWorker(width, size, elements), []
            for _ in range(WARM_UP + repetitions):
                worker.iterate()
                taken.append(worker.taken_ns)
            times = {f"{step}_ms": float(np.median([one[step] for one in taken[WARM_UP:]])) / 1e6 for step in STEPS}
            row: Row = {"codec": f"int{width}", "lanes": size, **times}
            rows.append(row | {"sum_ms": sum(times.values()), "bytes": worker.bytes_an_element})
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--elements", type=whole(), default=1_000_000, help="of the gradient (default 1000000)")
    parser.add_argument(
        "--lanes", type=whole(), action="append", help="elements of a block, repeat for several (default 2048, 256)"
    )
    parser.add_argument(
        "--repetitions", type=whole(), default=20, help="iterations of which medians are taken (default 20)"
    )
    options = parser.parse_args()
    lanes = options.lanes or [2048, 256]
    rows = measure((32, 8), lanes, options.elements, options.repetitions)
    show({"ledger": rows}, as_json=options.json)


if __name__ == "__main__":
    main()
