"""What a worker's steps and a decision cost on this machine, measured with the functions that are called there."""

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np
import threadpoolctl
from msgspec import Meta

from controller.decide import Decider
from controller.measure import Report
from host import wire
from host.aggregate import aggregate
from host.compress import FixedPoint, to_fixed
from host.history import BlockId, Result
from host.pages import Pages
from host.residual import Residual
from host.stragglers import Blocking
from host.wire import WORD_LANES
from run.config import Config, NotNegative
from run.errors import ConfigError
from sim.learning import Learning

REPEATS = 9

DECISIONS = 32
"""That are timed."""

REPORT_S = 0.0005
"""A report over gRPC: asking another process would measure the machine's load, not its speed."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU time of a worker's steps and of a decision, in seconds, and what they are done on."""

    cores: Annotated[int, Meta(ge=0)]  # shared by all hosts; 0: every host has a processor of its own
    encode_s: NotNegative  # a gradient into the books and onto the wire
    packet_s: NotNegative  # one datagram, sent or received
    apply_s: NotNegative  # one aggregate: average, step, accuracy, its line of metrics
    report_s: NotNegative  # telling the controller
    decide_s: NotNegative  # the controller's: from an estimate to a k

    @classmethod
    def load(cls, path: Path) -> Self:
        """What an earlier simulation has written; ConfigError where it is not that."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(f"--costs {path}: {error.strerror}") from error
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"--costs {path}: {error}") from error

    def save(self, path: Path) -> None:
        """For later simulations."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def measure(config: Config) -> Costs:
    """Medians of a few repetitions each, for this configuration's model and packets, on all cores of this machine."""
    with threadpoolctl.threadpool_limits(1):  # as the workers of a run
        return _measure(config)


def _measure(config: Config) -> Costs:
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
        json.dumps(asdict(learning.evaluator.look()))

    return Costs(
        cores=len(os.sched_getaffinity(0)),
        encode_s=_median_s(encode),
        packet_s=_packet_s(packed),
        apply_s=_median_s(apply),
        report_s=REPORT_S,
        decide_s=_decide_s(config),
    )


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


def _decide_s(config: Config) -> float:
    """The mean, as some decisions take a simulation and some do not; all workers report in between."""
    workers = range(config.job.workers)
    decider = Decider(workers=len(workers), policy=config.policy, divisor=config.divisor)
    blocking = [Blocking(config, rank) for rank in workers]
    times_s = []
    for iteration in range(1, config.policy.warm_up + DECISIONS + 1):
        now_s = float(iteration)
        for rank in workers:
            first_block_s = config.model.compute_ms / 1000 + blocking[rank].blocking_s(iteration)
            decider.report(rank, Report(iteration=iteration, first_block_s=first_block_s), now_s)
        begin_s = time.thread_time()
        decider.decide(now_s)
        times_s.append(time.thread_time() - begin_s)
    return float(np.mean(times_s[-DECISIONS:]))


def _median_s(step: Callable[[], None]) -> float:
    """One call's CPU time: others may be busy on this machine now."""
    times_s = []
    for _ in range(REPEATS):
        begin_s = time.thread_time()
        step()
        times_s.append(time.thread_time() - begin_s)
    return float(np.median(times_s))
