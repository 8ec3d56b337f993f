"""The loss of a computation while its process reduces gradients, beside its loss to a worker in another process.

    python -m bench.beside
    python -m bench.beside --mbps 400 --seconds 3 --rounds 5 --json

A thread computes matrix products with NumPy, while a worker reduces one gradient after another against a parameter
server: alone, with the worker in another process, with the worker in the same process. `products`: per second, as a
share of those of the computation alone; `gbps`: payload of the worker, one way. The difference of the two shares is the
cost of the shared interpreter; processors are shared in either case. Medians over rounds; all three take turns.
"""

import argparse
import contextlib
import multiprocessing
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import threadpoolctl

from bench.agent import MeasuredWorker, served
from bench.tables import Row, make_parser, say, show, whole
from kofn_common.config.compress import CompressSection
from kofn_common.wire.sizes import WORDS_MAX
from kofn_host.errors import HostError

SIDE = 256
"""Rows and columns of the matrices."""

PLACES = ("alone", "another process", "this process")

_processes = multiprocessing.get_context("forkserver")


def reduce_until(stop: Any, ready: Any, options: argparse.Namespace) -> float:
    """One gradient after another; Gbit/s."""
    gradient = np.random.default_rng(1).normal(size=options.elements).astype(np.float32)
    worker = MeasuredWorker(gradient, options.words, CompressSection(codec="int32"), options.mbps)
    with contextlib.closing(worker):
        worker.reduce()
        ready.set()
        begin, count = time.monotonic(), 0
        while not stop.is_set():
            worker.reduce()
            count += 1
        return 8e-9 * gradient.nbytes * count / (time.monotonic() - begin)


def _in_process(stop: Event, ready: Event, gbps: Any, options: argparse.Namespace) -> None:
    gbps.value = reduce_until(stop, ready, options)


@contextlib.contextmanager
def reducing(place: str, options: argparse.Namespace) -> Iterator[Callable[[], float]]:
    """While a worker reduces there; in the end, how many Gbit/s it has moved."""
    if place == "alone":
        yield lambda: 0.0
        return
    shared, found = place == "this process", list[float]()
    stop: Any = (threading if shared else _processes).Event()
    ready: Any = (threading if shared else _processes).Event()
    value = _processes.Value("d")
    one: Any = (
        threading.Thread(target=lambda: found.append(reduce_until(stop, ready, options)))
        if shared
        else _processes.Process(target=_in_process, args=(stop, ready, value, options))
    )
    one.start()
    try:
        if not ready.wait(60):
            raise HostError("the worker does not reduce")
        yield lambda: found[0] if shared else value.value
    finally:
        stop.set()
        one.join()


def products_per_s(seconds: float) -> float:
    """Return this thread's matrix products a second."""
    matrix = np.random.default_rng(1).normal(size=(SIDE, SIDE)).astype(np.float32)
    begin, count = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        matrix @ matrix
        count += 1
    return count / (time.monotonic() - begin)


def turn(place: str, options: argparse.Namespace) -> tuple[float, float]:
    """Products per second and Gbit/s."""
    with served(), reducing(place, options) as moved:
        products = products_per_s(options.seconds)
    return products, moved()


def measured(options: argparse.Namespace) -> list[Row]:
    """The rows of the table."""
    rounds = []
    for number in range(options.rounds):
        say(f"round {number + 1} of {options.rounds}")
        rounds.append([turn(place, options) for place in PLACES])
    return [
        {
            "worker": place,
            "products": statistics.median(row[at][0] / row[0][0] for row in rounds),
            "gbps": statistics.median(row[at][1] for row in rounds),
        }
        for at, place in enumerate(PLACES)
    ]


def main() -> None:
    """Measure and print the table."""
    options = _options()
    with threadpoolctl.threadpool_limits(1):  # as a worker of a run
        rows = measured(options)
    show({f"a computation beside all-reduces of {options.elements:,} elements": rows}, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--elements", type=whole(), default=1_000_000, help="of the gradient")
    parser.add_argument("--words", type=whole(1, WORDS_MAX), default=32, help="256-byte words in a packet")
    parser.add_argument("--mbps", type=float, default=0.0, help="as compress.pace_mbps (default 0: not paced)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--rounds", type=whole(), default=5)
    options = parser.parse_args()
    if options.seconds <= 0:
        parser.error("--seconds is above 0")
    return options


if __name__ == "__main__":
    try:
        main()
    except (HostError, OSError) as error:
        sys.exit(f"bench.beside: {error}")
