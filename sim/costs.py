"""What a worker's steps cost on this machine, measured with the functions that workers call."""

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from host import wire
from host.aggregate import aggregate
from host.compress import FixedPoint, to_fixed
from host.history import BlockId, Result
from host.metrics import fingerprint
from host.pages import Pages
from host.residual import Residual
from host.wire import WORD_LANES
from run.config import Config
from sim.learning import Learning

REPEATS = 9

REPORT_S = 0.0005
"""A report over gRPC: asking another process would measure the machine's load, not its speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """CPU time of a worker's steps, in seconds."""

    encode_s: float = 0.0  # a gradient into the books and onto the wire
    packet_s: float = 0.0  # one datagram, sent or received
    apply_s: float = 0.0  # one aggregate: average, step, accuracy, its line of metrics
    report_s: float = 0.0  # telling the controller


def measure(config: Config) -> Costs:
    """Medians of a few repetitions each, for this configuration's model and packets."""
    learning = Learning(config)
    lanes = config.job.words * WORD_LANES
    blocks = learning.replica.results.size // lanes
    residual = Residual(Pages.in_memory(blocks=blocks, lanes=lanes), 0)
    codec = FixedPoint(workers=config.job.workers, gradient_range=config.job.gradient_range)
    fixed = to_fixed(learning.gradient(0, 1)[1])
    numbers = iter(range(1, 10_000))

    def encode() -> None:
        iteration = next(numbers)
        residual.add(fixed, iteration)
        residual.sending(iteration, codec)
        wire.pack_values(residual.sent)

    packed = bytes(lanes * 4)
    results = [
        Result(id=BlockId(1, block), scale=codec.scale, lanes=0, k=1, count=1, members=1, values=packed)
        for block in range(blocks)
    ]

    def apply() -> None:
        done = aggregate(results, rank=0, elements=learning.elements, divisor=learning.divisor)
        learning.replica.apply(1, done.mean, done.total)
        json.dumps({"accuracy": learning.accuracy(), "params": fingerprint(done.mean)})

    return Costs(encode_s=_median_s(encode), packet_s=_packet_s(packed), apply_s=_median_s(apply), report_s=REPORT_S)


def _packet_s(values: bytes) -> float:
    """Half of the time in which a datagram is made, sent, received and looked at."""
    header = wire.Header(words=len(values) // wire.WORD_BYTES)
    receiving, sending = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with receiving, sending:
        receiving.bind(("127.0.0.1", 0))
        sending.connect(receiving.getsockname())

        def there_and_back() -> None:
            sending.send(wire.encode(header, values))
            wire.decode_header(receiving.recv(1 << 16))

        return _median_s(there_and_back) / 2


def _median_s(step: Callable[[], None]) -> float:
    """One call's time."""
    times_s = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        step()
        times_s.append(time.perf_counter() - begin_s)
    return float(np.median(times_s))
