"""A gradient that leaves while it is computed: how much of its transfer hides behind the computation.

    python -m bench.stream
    python -m bench.stream --pieces 20 --compute-ms 150 --mbps 200 --json

One worker, paced, reduces against a parameter server in another process. It computes a gradient in pieces (matrix
products of NumPy, in the worker's main thread) and puts each piece as soon as it is there. `compute_ms`, `transfer_ms`:
each alone; `one_by_one_ms`: the transfer after the computation; `streamed_ms`: pieces put between computations.
`of_limit`: the longer one of both plus one piece of the shorter one, divided by that. Medians over rounds, in which all
take turns.
"""

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import threadpoolctl

from bench.agent import MeasuredWorker, served
from bench.tables import Row, make_parser, say, show, whole
from kofn_common.config.compress import CompressSection
from kofn_common.wire.sizes import WORDS_MAX
from kofn_host.arrays import Floats
from kofn_host.errors import HostError

SIDE = 128
"""Rows and columns of the matrices."""


class Computation:
    """So many milliseconds of matrix products, in equal pieces."""

    def __init__(self, total_ms: float, pieces: int) -> None:
        self._matrix = np.random.default_rng(1).normal(size=(SIDE, SIDE)).astype(np.float32)
        self._products = 1000
        self.piece()
        took_s = statistics.median(_taken_s(self.piece) for _ in range(5))
        self._products = max(1, round(self._products * total_ms / pieces / 1e3 / took_s))

    def piece(self) -> None:
        for _ in range(self._products):
            self._matrix @ self._matrix


class Turns:
    """The turns: computation, transfer, both in sequence, both at once; in seconds."""

    def __init__(self, worker: MeasuredWorker, gradient: Floats, computation: Computation, pieces: int) -> None:
        self._worker, self._gradient, self._computation = worker, gradient, computation
        self._edges = np.linspace(0, gradient.size, pieces + 1).astype(int).tolist()

    def compute(self) -> None:
        for _ in self._edges[1:]:
            self._computation.piece()

    def one_by_one(self) -> None:
        self.compute()
        self._worker.reduce()

    def streamed(self) -> None:
        gradient = self._worker.begin()
        for begin, end in pairwise(self._edges):
            self._computation.piece()
            gradient.put(begin, self._gradient[begin:end])
        gradient.result()

    def round(self) -> tuple[float, ...]:
        return tuple(map(_taken_s, (self.compute, self._worker.reduce, self.one_by_one, self.streamed)))


def measured(options: argparse.Namespace) -> Row:
    """A row of the table."""
    gradient = np.random.default_rng(1).normal(size=options.elements).astype(np.float32)
    with contextlib.ExitStack() as stack:
        stack.enter_context(threadpoolctl.threadpool_limits(1))  # as a worker of a run
        stack.enter_context(served())
        worker = MeasuredWorker(gradient, options.words, CompressSection(codec="int32"), options.mbps)
        stack.callback(worker.close)
        turns = Turns(worker, gradient, Computation(options.compute_ms, options.pieces), options.pieces)
        rounds = [turns.round() for _ in range(options.rounds + 1)][1:]
    compute, transfer, one_by_one, streamed = (1e3 * statistics.median(column) for column in zip(*rounds, strict=True))
    limits = [max(row[:2]) + min(row[:2]) / options.pieces for row in rounds]
    return {
        "compute_ms": compute,
        "transfer_ms": transfer,
        "one_by_one_ms": one_by_one,
        "streamed_ms": streamed,
        "of_limit": statistics.median(limit / row[3] for limit, row in zip(limits, rounds, strict=True)),
    }


def _taken_s(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print the table."""
    options = _options()
    say(f"{options.rounds} rounds")
    show(
        {f"{options.elements:,} elements in {options.pieces} pieces at {options.mbps:g} Mbit/s": [measured(options)]},
        as_json=options.json,
    )


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--elements", type=whole(), default=1_000_000, help="of the gradient")
    parser.add_argument("--pieces", type=whole(), default=20)
    parser.add_argument("--compute-ms", type=float, default=150.0, help="of the whole gradient")
    parser.add_argument("--mbps", type=float, default=200.0, help="as compress.pace_mbps")
    parser.add_argument("--words", type=whole(1, WORDS_MAX), default=32, help="256-byte words in a packet")
    parser.add_argument("--rounds", type=whole(), default=10)
    options = parser.parse_args()
    if options.pieces > options.elements:
        parser.error(f"--pieces must be at most --elements, {options.elements}, got {options.pieces}")
    if min(options.compute_ms, options.mbps) <= 0:
        parser.error("--compute-ms and --mbps are above 0")
    return options


if __name__ == "__main__":
    try:
        main()
    except (HostError, OSError) as error:
        sys.exit(f"bench.stream: {error}")
