"""The cost of an all-reduce in the network for a worker: its processor time, over loopback.

    python -m bench.agent
    python -m bench.agent --words 32 --elements 10000000 --codec int8 --residual bfloat16 --mbps 100 --rounds 5 --json

One worker reduces against a parameter server in another process, whose answers are a switch's: `worker_ms` is the
processor time of all the worker's threads an all-reduce, `packet_us` that for each packet sent and answered. Of it
`python_ms` are all threads but the engine's, `passes_ms` its passes over ledger and values (by the clock), and
`moving_us` the rest: sending, receiving and the protocol, for each packet.
`of_bare`: the time to send and receive as many packets of that size through a socket without reading them, over the
worker's. `of_coalesced`: the same with packets that the kernel takes and gives coalesced (UDP_SEGMENT, UDP_GRO).
`of_ring`: the time of an all-reduce of the same gradient for a worker of a ring of two over TCP, which sends and
receives as many numbers in float32, over the worker's. `of_gloo`: the same for one of two workers with gloo, if PyTorch
is installed. Medians over rounds, in which all of them take turns.
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
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol, get_args

import numpy as np

from bench.tables import Row, make_parser, say, show, whole
from kofn_common.config.compress import CompressSection, Residual
from kofn_common.config.job import JobSection
from kofn_common.gso import COALESCED_BYTES
from kofn_common.wire.packet import HEADER_BYTES, WORD_BYTES
from kofn_common.wire.sizes import WORDS_MAX
from kofn_host.arrays import Floats
from kofn_host.collectives import InNetwork, Ring, StreamedGradient
from kofn_host.engine.pacing_rate import pacing_rate
from kofn_host.errors import HostError
from kofn_host.transport.transport import Transport
from kofn_host.transport.udp import may_join, udp_socket

OWN, SERVER, PORT, RING_PORT = "127.0.92.1", "127.0.92.2", 19301, 19302
KEPT = 3
"""All-reduces, after which a worker keeps no more with further ones."""
AT_ONCE = 64
"""Packets on their way: as many as are in flight by default."""
UDP_SEGMENT, UDP_GRO = 103, 104
"""Options of linux/udp.h: Python has no names for them."""


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
        engine, begin = engine_cpu_s(), time.process_time()  # the reading of the engine's time does not count
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
    return sum(map(_engine_task_cpu_s, Path("/proc/self/task").iterdir()))


def _engine_task_cpu_s(task: Path) -> float:
    """Return the processor time of a thread of an engine; 0 for other threads, which may end meanwhile."""
    try:
        is_engine = (task / "comm").read_text() == "kofn-engine\n"
        return 1e-9 * int((task / "schedstat").read_text().split()[0]) if is_engine else 0.0
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


class Anchor(Protocol):
    """A cost that a worker is compared with."""

    def cpu_s(self) -> float:
        """Return the processor time of the same as one all-reduce."""

    def close(self) -> None: ...


@dataclass
class Bare:
    """A socket whose packets are not read, and its other end; up to `joined` packets are coalesced."""

    packets: int
    payload: int
    joined: int = 1
    _ends: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ends = [udp_socket(address, 0) for address in (OWN, SERVER)]
        for end, other in zip(self._ends, reversed(self._ends), strict=True):
            end.connect(other.getsockname())
            if self.joined > 1 and may_join(end):
                end.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, self.payload)
                end.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def cpu_s(self) -> float:
        """Return the processor time of sending and receiving as many packets as an all-reduce has."""
        return sum(self._turn(min(AT_ONCE, self.packets - at)) for at in range(0, self.packets, AT_ONCE))

    def _turn(self, count: int) -> float:
        """One end's; what the other one does meanwhile does not count."""
        (one, other), buffer = self._ends, bytearray(self.payload * self.joined)
        messages = [bytes(self.payload * min(self.joined, count - at)) for at in range(0, count, self.joined)]
        begin = time.thread_time()
        for message in messages:
            one.send(message)
        sent = time.thread_time()
        for message in messages:
            other.recv_into(buffer)
            other.send(message)
        turned = time.thread_time()
        for _ in messages:
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


class GlooPair:
    """Two workers of gloo."""

    def __init__(self, gradient: Floats) -> None:
        import torch  # noqa: PLC0415  # may not be installed
        import torch.distributed as dist  # noqa: PLC0415

        def join(rank: int) -> dist.ProcessGroupGloo:
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
            options._timeout = timedelta(minutes=1)
            return dist.ProcessGroupGloo(store, rank, 2, options)

        store = dist.HashStore()
        with ThreadPoolExecutor(2) as pool:
            self._groups = list(pool.map(join, range(2)))
        self._tensors = [torch.zeros(gradient.size) for _ in self._groups]

    def close(self) -> None:
        self._groups.clear()

    def cpu_s(self) -> float:
        """Half of what both take for an all-reduce: they do the same."""
        begin = time.process_time()
        for work in [group.allreduce([tensor]) for group, tensor in zip(self._groups, self._tensors, strict=True)]:
            work.wait()
        return (time.process_time() - begin) / 2


def anchors(gradient: Floats, packets: int, payload: int) -> dict[str, Anchor]:
    """Return the costs that a worker is compared with, by the column of the table.

    The last ones leave the caches to the worker: they do so with PyTorch and without.
    """
    gloo = {"of_gloo": GlooPair(gradient)} if find_spec("torch") else {}
    return {
        **gloo,
        "of_coalesced": Bare(packets, payload, min(AT_ONCE, COALESCED_BYTES // payload)),
        "of_bare": Bare(packets, payload),
        "of_ring": Rings(gradient),
    }


def measured(gradient: Floats, words: int, compress: CompressSection, mbps: float, rounds: int) -> Row:
    """A row of the table."""
    say(f"{compress.codec}, {words} words")
    with contextlib.ExitStack() as stack:
        stack.enter_context(served())
        worker = MeasuredWorker(gradient, words, compress, mbps)
        stack.callback(worker.close)
        memory = worker.memory()
        compared = anchors(gradient, worker.packets, worker.payload)
        for anchor in compared.values():
            stack.callback(anchor.close)
        turns = [(worker.cost(), [anchor.cpu_s() for anchor in compared.values()]) for _ in range(rounds + 1)][1:]
    costs = [own for own, _ in turns]
    taken = statistics.median(own.whole for own in costs)
    return {
        "codec": compress.codec,
        "words": words,
        "packets": worker.packets,
        "worker_ms": 1e3 * taken,
        "packet_us": 1e6 * taken / worker.packets,
        "python_ms": 1e3 * statistics.median(own.whole - own.engine for own in costs),
        "passes_ms": 1e3 * statistics.median(own.passes for own in costs),
        "moving_us": 1e6 * statistics.median(own.engine - own.passes for own in costs) / worker.packets,
        **{
            name: statistics.median(others[at] / own.whole for own, others in turns) for at, name in enumerate(compared)
        },
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
