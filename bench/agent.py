"""The cost of an all-reduce in the network for a worker: its processor time, over loopback.

    python -m bench.agent
    python -m bench.agent --words 32 --elements 10000000 --codec int8 --residual bfloat16 --mbps 100 --rounds 5 --json

One worker reduces against a parameter server in another process, whose answers are a switch's: `worker_ms` is the
processor time of all the worker's threads an all-reduce, `packet_us` that for each packet sent and answered. Of it
`python_ms` are all threads but the engine's, `passes_ms` its passes over ledger and values (by the clock), and
`moving_us` the rest: sending, receiving and the protocol, for each packet.
`of_bare`: the time to send and receive as many packets of that size through a socket without reading them, over the
worker's. `of_ring`: the time of an all-reduce of the same gradient for a worker of a ring of two over TCP, which sends
and receives as many numbers in float32, over the worker's. Medians over rounds, in which all three take turns.
`memory`: bytes of an element that the worker keeps between two all-reduces, beside gradient and mean, as the process
has grown; true of ten million elements or more.
"""

import argparse
import contextlib
import mmap
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from bench.tables import Row, make_parser, say, show, whole
from kofn_common.config.compress import CompressSection, Residual
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import HEADER_BYTES, WORD_BYTES
from kofn_common.wire.sizes import WORDS_MAX
from kofn_host.arrays import Floats
from kofn_host.collectives import InNetwork, Ring, StreamedGradient
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.errors import HostError
from kofn_host.transport.transport import Transport
from kofn_host.transport.udp import udp_socket

OWN, SERVER, PORT, RING_PORT = "127.0.92.1", "127.0.92.2", 19301, 19302
KEPT = 3
"""All-reduces, after which a worker keeps no more with further ones."""
AT_ONCE = 64
"""Packets on their way: as many as are in flight by default."""


@contextlib.contextmanager
def served() -> Iterator[None]:
    """A server for the worker."""
    command = [
        sys.executable,
        "-m",
        "kofn_host.collectives.parameter_server",
        "--address",
        SERVER,
        "--worker",
        OWN,
        "--port",
        str(PORT),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise HostError(f"no server at {SERVER}:{PORT}")
        yield
    finally:
        process.terminate()
        process.communicate()


class MeasuredWorker:
    """The one that is measured."""

    def __init__(self, gradient: Floats, words: int, compress: CompressSection, mbps: float) -> None:
        self._before, self._gradient = resident(), gradient
        transport = Transport(SERVER, OWN, port=PORT, pace=pacing_rate(mbps, words))
        job = JobSection(workers=1, words=words)
        self._communicator = InNetwork(0, gradient.size, job=job, transport=transport, compress=compress)
        shape = self._communicator.agent.protocol.layout
        self.packets, self.payload = shape.total, HEADER_BYTES + shape.words * WORD_BYTES

    def close(self) -> None:
        self._communicator.close()

    def begin(self) -> StreamedGradient:
        return self._communicator.begin(self._gradient.size, elastic=True)

    def reduce(self) -> None:
        self._communicator.all_reduce(self._gradient, op="mean", elastic=True).result()

    def memory(self) -> float:
        """Bytes of an element that it keeps."""
        for _ in range(KEPT):
            self.reduce()
        return (resident() - self._before) / self._gradient.size

    def cost(self) -> "Cost":
        """Return the cost of an all-reduce."""
        begin, engine = time.process_time(), engine_cpu_s()
        self.reduce()
        whole, engine, reduced = time.process_time() - begin, engine_cpu_s() - engine, self._communicator.reduced
        return Cost(whole, engine, reduced.encode + reduced.receive + reduced.decode)


class Cost(NamedTuple):
    """Processor seconds of a worker: all, the engine's, and of these what it does beside packets."""

    whole: float
    engine: float
    passes: float


def resident() -> int:
    """Bytes of this process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def engine_cpu_s() -> float:
    """Return the processor time of this process's engines."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "kofn-engine\n"]
    return sum(1e-9 * int((task / "schedstat").read_text().split()[0]) for task in tasks)


@dataclass
class Bare:
    """A socket whose packets are not read, and its other end."""

    packets: int
    payload: int
    _ends: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ends = [udp_socket(address, RING_PORT) for address in (OWN, SERVER)]
        for end, other in zip(self._ends, (SERVER, OWN), strict=True):
            end.connect((other, RING_PORT))

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def cpu_s(self) -> float:
        """Return the processor time of sending and receiving as many packets as an all-reduce has."""
        return sum(self._turn(min(AT_ONCE, self.packets - at)) for at in range(0, self.packets, AT_ONCE))

    def _turn(self, count: int) -> float:
        """One end's; what the other one does meanwhile does not count."""
        (one, other), packet, buffer = self._ends, bytes(self.payload), bytearray(self.payload)
        begin = time.thread_time()
        for _ in range(count):
            one.send(packet)
        sent = time.thread_time()
        for _ in range(count):
            other.recv_into(buffer)
            other.send(packet)
        turned = time.thread_time()
        for _ in range(count):
            one.recv_into(buffer)
        return sent - begin + time.thread_time() - turned


class Rings:
    """Two workers of a ring."""

    def __init__(self, gradient: Floats) -> None:
        self._gradient = gradient
        addresses = [f"{address}:{RING_PORT}" for address in (OWN, SERVER)]
        with ThreadPoolExecutor(2) as pool:
            self._rings = list(pool.map(lambda rank: Ring(rank, addresses), range(2)))

    def close(self) -> None:
        for ring in self._rings:
            ring.close()

    def cpu_s(self) -> float:
        """Half of what both take for an all-reduce: they do the same."""
        begin = time.process_time()
        for work in [ring.all_reduce(self._gradient, op="mean") for ring in self._rings]:
            work.result()
        return (time.process_time() - begin) / 2


def measured(gradient: Floats, words: int, compress: CompressSection, mbps: float, rounds: int) -> Row:
    """A row of the table."""
    say(f"{compress.codec}, {words} words")
    with contextlib.ExitStack() as stack:
        stack.enter_context(served())
        worker = MeasuredWorker(gradient, words, compress, mbps)
        stack.callback(worker.close)
        memory = worker.memory()
        bare, rings = Bare(worker.packets, worker.payload), Rings(gradient)
        stack.callback(bare.close)
        stack.callback(rings.close)
        turns = [(worker.cost(), bare.cpu_s(), rings.cpu_s()) for _ in range(rounds + 1)][1:]
    taken = statistics.median(own.whole for own, _, _ in turns)
    return {
        "codec": compress.codec,
        "words": words,
        "packets": worker.packets,
        "worker_ms": 1e3 * taken,
        "packet_us": 1e6 * taken / worker.packets,
        "python_ms": 1e3 * statistics.median(own.whole - own.engine for own, _, _ in turns),
        "passes_ms": 1e3 * statistics.median(own.passes for own, _, _ in turns),
        "moving_us": 1e6 * statistics.median(own.engine - own.passes for own, _, _ in turns) / worker.packets,
        "of_bare": statistics.median(bare / own.whole for own, bare, _ in turns),
        "of_ring": statistics.median(ring / own.whole for own, _, ring in turns),
        "memory": memory,
    }


def main() -> None:
    """Measure and print the table."""
    options = _options()
    gradient = np.random.default_rng(1).normal(size=options.elements).astype(np.float32)
    rows = [
        measured(gradient, words, CompressSection(codec=codec, residual=options.residual), options.mbps, options.rounds)
        for codec in options.codec
        for words in options.words
    ]
    paced = f", paced at {options.mbps:g} Mbit/s" if options.mbps else ""
    show({f"an all-reduce of {options.elements:,} elements{paced}": rows}, as_json=options.json)


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--words", type=whole(1, WORDS_MAX), nargs="+", default=[4, 32], help="256-byte words in a packet"
    )
    parser.add_argument("--elements", type=whole(), default=1_000_000, help="of the gradient")
    parser.add_argument("--codec", nargs="+", default=["int32"], help="as compress.codec")
    parser.add_argument("--residual", choices=get_args(Residual), default="exact", help="as compress.residual")
    parser.add_argument("--mbps", type=float, default=0.0, help="as compress.pace_mbps (default 0: not paced)")
    parser.add_argument("--rounds", type=whole(), default=20)
    options = parser.parse_args()
    if options.mbps < 0:
        parser.error("--mbps is 0 or more")
    return options


if __name__ == "__main__":
    try:
        main()
    except (HostError, OSError) as error:
        sys.exit(f"bench.agent: {error}")
