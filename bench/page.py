"""The cost of the live page and /metrics for a run that is watched.  Needs root.

    python -m bench.page [--iterations 6000] [--turn-s 2] [--workers 4]

One run; a client opens the page's stream of frames for a turn and asks for /metrics once a second, and is away for a
turn, again and again: slots are sampled and frames made only while it is there.  k = n and no stragglers, so that every
delay counts.  A turn's figure is the median of its iteration times.  Each turn with the client is compared with the
mean of its two neighbours, so that other load of the machine hits both.  CPU is that of the process of `kofn run`, in
per cent of one processor.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.tables import Row, make_parser, say, show, whole
from kofn.report.summarise import first_finishes
from kofn.run.plan import make_plan
from kofn.run.runner import execute
from kofn_common.config.dump import to_toml
from kofn_common.config.job import JobSection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.results.worker_metrics import read_trial
from kofn_common.wire.sizes import WORKERS_MAX
from tests.ports import own_port

TOKEN = "bench"
SETTLE_S = 0.3
"""The beginning of a turn, which belongs to none."""

CLIENT = f"""
import http.client, sys, time
port, turn_s = int(sys.argv[1]), float(sys.argv[2])

def get(path, last=0):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={{"Authorization": "Bearer {TOKEN}", "Last-Event-ID": str(last)}})
    return connection, connection.getresponse()

def until_frames():
    while True:
        try:
            connection, answer = get("/metrics")
            if b"kofn_iteration{{" in answer.read():
                return
        except OSError:
            pass
        time.sleep(0.2)

until_frames()
time.sleep(2)
last = 0
while True:
    time.sleep(turn_s)
    begin, seen, scraped = time.time(), 0, 0.0
    connection, answer = get("/frames", last)
    while time.time() < begin + turn_s:
        seen += answer.read1().count(b"event: frame")
        if time.time() > scraped + 1:
            scraped = time.time()
            get("/metrics")[1].read()
    connection.close()
    last += seen
    print(begin, time.time(), seen, flush=True)
"""


def main() -> None:
    """Measure and print."""
    options = _options()
    os.environ["KOFN_WEB_TOKEN"] = TOKEN
    with cpu_times() as cpu:
        finished, turns = measure(options.workers, options.iterations, options.turn_s)
    times = compared(finished, turns, options.turn_s, median_ms)
    shares = compared(cpu, turns, options.turn_s, cpu_percent)
    show({"the live page's cost": [row(times, shares, options.workers)]}, as_json=options.json)


Pairs = list[tuple[float, float]]
"""For each turn with the client: the mean of its two neighbours, and its own figure."""


def compared(values: Sequence[Any], turns: Pairs, turn_s: float, figure: Callable[[Sequence[Any]], float]) -> Pairs:
    """`values` are times, or begin with one; `figure` is of those in a turn."""

    def between(begin: float, end: float) -> float:
        return figure([value for value in values if begin + SETTLE_S <= np.ravel(value)[0] < end])

    return [
        (statistics.fmean((between(begin - turn_s, begin), between(end, end + turn_s))), between(begin, end))
        for begin, end in turns
    ]


def median_ms(finished: Sequence[float]) -> float:
    """Iteration time."""
    return 1e3 * statistics.median(later - earlier for earlier, later in itertools.pairwise(finished))


def cpu_percent(samples: Sequence[tuple[float, float]]) -> float:
    """Return the load in per cent of one processor."""
    (begin, before), (end, after) = samples[0], samples[-1]
    return 100 * (after - before) / (end - begin)


@contextlib.contextmanager
def cpu_times() -> Iterator[list[tuple[float, float]]]:
    """Unix time and processor time of this process, which is the run's: its supervisor and its page."""
    samples: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.05):
            samples.append((time.time(), time.process_time()))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def row(times: Pairs, shares: Pairs, workers: int) -> Row:
    """The interval of the median is a bootstrap's, 95 %."""
    ratios = [watched / without for without, watched in times]
    draws = np.random.default_rng(1).choice(ratios, (10_000, len(ratios)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return {
        "workers": workers,
        "turns": len(ratios),
        "without, ms": statistics.median(without for without, _ in times),
        "watched, ms": statistics.median(watched for _, watched in times),
        "ratio": f"{statistics.median(ratios):.3f}",
        "95 % interval": f"{low:.3f} .. {high:.3f}",
        "CPU without, %": statistics.median(without for without, _ in shares),
        "CPU watched, %": statistics.median(watched for _, watched in shares),
    }


def measure(workers: int, iterations: int, turn_s: float) -> tuple[list[float], list[tuple[float, float]]]:
    """When iterations were finished, and the turns with the client, Unix time."""
    config = Config(
        run=RunSection(name="page", trials=("all",), target=1.0, max_iterations=iterations),
        job=JobSection(workers=workers),
    )
    with tempfile.TemporaryDirectory() as folder, own_port() as port:
        source = Path(folder) / "page.toml"
        source.write_text(to_toml(config))
        plan = dataclasses.replace(make_plan(source, out=Path(folder) / "run", quiet=True), check=False, page_port=port)
        told = Path(folder) / "turns"
        with client(port, turn_s, told):
            results = execute(plan, Console(file=sys.stderr, quiet=True))
        finished = [line.time for line in first_finishes(read_trial(results.jobs[0].trials[0], workers))]
        lines = [[float(word) for word in line.split()] for line in told.read_text().splitlines()]
    inside = [(begin, end) for begin, end, frames in lines if frames and end + turn_s < finished[-1]]
    say(f"{len(inside)} turns, {len(finished)} iterations in {finished[-1] - finished[0]:.0f} s")
    return finished, inside


@contextlib.contextmanager
def client(port: int, turn_s: float, told: Path) -> Iterator[None]:
    """Run the client as a process; it writes its turns to a file."""
    with told.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(port), str(turn_s)], stdout=out, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--iterations", type=whole(), default=6000)
    parser.add_argument("--turn-s", type=float, default=2.0)
    parser.add_argument("--workers", type=whole(1, WORKERS_MAX), default=4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
