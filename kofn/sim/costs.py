"""The CPU time of a worker's steps and of a decision on this machine, measured with the real functions."""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np
import threadpoolctl
from msgspec import Meta
from msgspec.structs import replace

from kofn.run.machine_load import FREE, LoadOfOthers
from kofn.sim.collective_costs import ring_packet_s, server_s
from kofn.sim.learning import Learning
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import SWITCH
from kofn_common.config.schema import Config
from kofn_common.config.section import NotNegative, Probability
from kofn_common.json_text import json_text
from kofn_common.results.files import write_synced
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.wire import packet as wire
from kofn_common.wire.sizes import WEIGHT_UNIT
from kofn_controller.policy.control_loop import ControlLoop
from kofn_host.arrays import Floats
from kofn_host.compression.aggregate import Aggregate, aggregate
from kofn_host.compression.encoder import Encoder
from kofn_host.protocol.core import Protocol
from kofn_host.protocol.instructions import Packed, Send
from kofn_host.protocol.results import BlockId, BlockResults, Result
from kofn_host.training import JobCoding
from kofn_host.training.peer_to_peer import check_finite
from kofn_host.transport.datagrams import Datagrams, Packet
from kofn_host.workload import load_stragglers

REPEATS = 40
"""The number of times that a step is timed. The least time hardly depends on other processes."""

COLD = 3.7
"""The time of a step in a run, divided by the least time of the same step repeated with warm caches. In a run, a step
takes longer because it is called once in some milliseconds, and other processes run in between. The factor comes from
the CPU time of workers in runs of 4 and 8 workers on two cores."""

SLEEP_S = 0.003
"""The sleep that measures how late a process wakes up."""

TOGETHER = 8
"""The number of packets that are sent or received at a time."""

DECISIONS, DECISION_REPEATS = 32, 3
"""The number of decisions that are timed, and the number of times that each decision is timed."""

SWITCH_S, REPORT_S, TAKE_S = 25e-6, 0.5e-3, 0.7e-3
"""Costs that are not measured, because they arise in other processes and the kernel. They come from the CPU time of a
run's processes (two cores, the default configuration with k = 2: switch, workers and controller take 2, 3 and 3.5 ms
an iteration)."""

FORWARD_S = 3e-6
"""The switch's CPU time for one of many packets that it forwards, from runs with a parameter server and gradients of a
million elements. Like the costs above it is not measured."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU time of the steps of worker, switch and server and of a decision, in seconds; the cores, and their load."""

    cores: Annotated[int, Meta(ge=0)]  # cores that all hosts share; 0: every host has a separate core
    wake_s: NotNegative  # from the end of a sleep, or a wake-up, until the thread runs
    encode_s: NotNegative  # entering a gradient into the ledger, and encoding it; in a ring, checking and copying it
    packet_s: NotNegative  # one datagram, sent or received, by a worker
    switch_s: NotNegative  # one datagram in the switch
    forward_s: NotNegative = 0.0  # one datagram that the switch forwards to or from a parameter server
    server_s: NotNegative = 0.0  # one contribution at a parameter server, with its answer
    ring_step_s: NotNegative = 0.0  # the last packet of a step at a worker of a ring: sent, received and added
    ring_packet_s: NotNegative = 0.0  # each packet of the step before the last one
    apply_s: NotNegative  # one aggregate: average, step, accuracy, line of metrics
    report_s: NotNegative  # a report to the controller
    take_s: NotNegative  # one report, at the controller
    decide_s: NotNegative  # one decision, at the controller
    others: Probability = 0.0  # share of the cores that other processes used during the measurement

    @property
    def busy(self) -> bool:
        """Whether the machine was busy during the measurement."""
        return self.others > FREE

    @property
    def load_note(self) -> str:
        """A remark if the machine was busy during the measurement; empty if it was not."""
        if not self.busy:
            return ""
        return (
            "the CPU times of a worker's steps were measured on a busy machine: other processes used"
            f" {self.others:.0%} of the cores; run kofn simulate --measure to measure again"
        )

    @classmethod
    def load(cls, path: Path, collective: str = SWITCH) -> Self:
        """Load the costs of an earlier simulation. Raise ConfigError if the file cannot be read, has other content, or
        lacks a cost of the collective."""
        try:
            costs = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError(f"--costs {path}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"--costs {path}: {error}") from error
        if missing := [name for name in _own_costs(collective) if not getattr(costs, name)]:
            raise ConfigError(
                f"--costs {path}: {' and '.join(missing)} must be more than 0 with job.collective = {collective!r}, got"
                " 0: the costs are those of another collective, or of an older kofn. Without this file they are"
                " measured"
            )
        return costs

    def save(self, path: Path) -> None:
        write_synced(path, msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def _own_costs(collective: str) -> tuple[str, ...]:
    """Return the costs that only jobs with this collective have."""
    kind = load_collective(collective)
    if kind.server:
        return "forward_s", "server_s"
    return () if kind.ledger else ("ring_step_s", "ring_packet_s")


def measure(config: Config) -> Costs:
    """Measure the costs for a configuration's model, packets and stragglers on this machine."""
    with threadpoolctl.threadpool_limits(1):  # a worker of a run has one thread for arithmetic, too
        load = LoadOfOthers()
        costs = _measure(config)
        return replace(costs, others=load.share())


def _measure(config: Config) -> Costs:
    learning, collective = Learning(config), load_collective(config.job.collective)
    coding, gradient = learning.coding, learning.gradient(0, 1)[1]
    encode, average = _by_packets(config, learning, gradient) if collective.ledger else _in_ring(learning, gradient)
    packet_s = 0.0 if collective.ledger else ring_packet_s()

    def apply() -> None:
        done = average()
        json_text(asdict(learning.replica.apply(1, done.mean, done.checksums, done.plan)))

    return Costs(
        cores=len(os.sched_getaffinity(0)),
        wake_s=_wake_s(),
        encode_s=COLD * _least_s(encode),
        packet_s=COLD * _packet_s(coding) if collective.ledger else 0.0,
        switch_s=SWITCH_S,
        forward_s=FORWARD_S if collective.server else 0.0,
        server_s=server_s(coding) if collective.server else 0.0,
        ring_step_s=COLD * packet_s,
        ring_packet_s=packet_s,
        apply_s=COLD * _least_s(apply),
        report_s=REPORT_S,
        take_s=TAKE_S,
        decide_s=_decide_s(config),
    )


def _by_packets(
    config: Config, learning: Learning, gradient: Floats
) -> tuple[Callable[[], object], Callable[[], Aggregate]]:
    """Return functions that enter and encode a gradient, and that return the aggregate of its packets' sums."""
    coding = learning.coding
    encoder = Encoder.of(coding, config.compress, 0)
    numbers = iter(range(1, 10_000))

    def encode() -> None:
        iteration = next(numbers)
        encoder.begin(iteration)
        encoder.enter(gradient, iteration)
        encoder.encode(iteration)

    def average() -> Aggregate:
        done = aggregate(encoder.follow(results, 0), coding, rank=0, average=learning.average)
        encoder.plan = coding.planner.first()
        return done

    encode()
    results = BlockResults.of([_own(encoder.packed(block), block) for block in encoder.blocks.tolist()])
    return encode, average


def _in_ring(learning: Learning, gradient: Floats) -> tuple[Callable[[], object], Callable[[], Aggregate]]:
    """Return functions that check and copy a gradient, and that return the ring's aggregate."""
    copy, plan = np.empty_like(gradient), learning.coding.planner.first()

    def give() -> None:
        check_finite(gradient)
        copy[...] = gradient

    return give, lambda: Aggregate.of_all(1, gradient, 1, plan)


def _own(packed: Packed, block: int) -> Result:
    """Return the result of a block with this worker's contribution alone."""
    values, scale, lanes, weight = packed
    id = BlockId(1, block)
    return Result(id=id, scale=scale, lanes=lanes, k=1, count=1, weight=weight, members=1, values=values)


def _packet_s(coding: JobCoding) -> float:
    """Return the seconds of CPU time that it takes to make, send, receive and decode a datagram. The function times
    iterations with two datagrams a block, one in each direction, and divides by the number of datagrams."""
    plan, shape = coding.planner.first(), coding.layout
    blocks = plan.blocks.tolist()
    slots = _power_of_two(shape.blocks)
    protocol = Protocol(job=1, rank=0, layout=shape, slots=slots, window=slots // 2, rto_s=1e9)
    packed = Packed(bytes(shape.words_of(0, plan.lanes) * wire.WORD_BYTES), 1, plan.lanes, WEIGHT_UNIT)
    sum_words = shape.sum_words_of(0, plan.lanes)
    sums = bytes(sum_words * wire.WORD_BYTES)
    numbers = iter(range(1, 10_000))
    receiving, sending = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with receiving, sending:
        receiving.bind(("127.0.0.1", 0))
        sending.connect(receiving.getsockname())
        exchange = _exchange(sending, receiving)

        def iterate() -> None:
            protocol.begin(next(numbers), 0.0, blocks, plan.lanes)
            for begin in range(0, len(blocks), TOGETHER):
                ready = [(block, packed) for block in blocks[begin : begin + TOGETHER]]
                instructions = protocol.contribute_all(ready, now=0.0)
                sent = [instruction for instruction in instructions if isinstance(instruction, Send)]
                answer = {"kind": wire.Kind.RESULT, "members": 1, "words": sum_words}
                answers = [(header._replace(**answer), sums) for header, _, _ in sent]
                protocol.packets_in(exchange(answers), 0.0)

        return _least_s(iterate) / (2 * len(blocks))


def _exchange(sending: socket.socket, receiving: socket.socket) -> Callable[[Sequence[Packet]], Sequence[Packet]]:
    """Return a function that sends packets, and receives the same packets, in the way in which a worker sends and
    receives."""
    out, back = Datagrams(sending), Datagrams(receiving)

    def together(packets: Sequence[Packet]) -> Sequence[Packet]:
        out.send(packets)
        return back.receive().packets

    return together


def _power_of_two(blocks: int) -> int:
    """Return the number of slots for a window of all blocks: the least power of two that is at least `2 * blocks`."""
    return 1 << (2 * blocks - 1).bit_length()


def _decide_s(config: Config) -> float:
    """Return the mean CPU time of a decision, in seconds, of each decision the least of a few. A median over all
    decisions would hide the simulations that only some of them need."""
    return float(np.min([_decisions_s(config) for _ in range(DECISION_REPEATS)], axis=0).mean())


def _decisions_s(config: Config) -> list[float]:
    """Return the CPU times of DECISIONS decisions, in seconds. Each call takes the same decisions."""
    workers = range(config.job.workers)
    control_loop = ControlLoop(
        workers=len(workers), policy=config.policy, average=config.model.average, racks=config.job.racks
    )
    blocking = [load_stragglers(config, rank) for rank in workers]
    times_s = []
    for iteration in range(1, config.policy.warm_up + DECISIONS + 1):
        now_s = float(iteration)
        for rank in workers:
            first_block_s = blocking[rank].compute_s(iteration) + blocking[rank].blocking_s(iteration, 0, now_s)
            control_loop.report(rank, pb.Report(iteration=iteration, first_block_s=first_block_s), now_s)
        begin_s = time.thread_time()
        control_loop.choose(now_s)
        times_s.append(time.thread_time() - begin_s)
    return times_s[-DECISIONS:]


def _wake_s() -> float:
    """Return the delay, in seconds, with which a sleep ends: the lower quartile, because other processes make many
    sleeps longer, and a few sleeps end early."""
    late_s = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        time.sleep(SLEEP_S)
        late_s.append(time.perf_counter() - begin_s - SLEEP_S)
    return float(np.quantile(late_s, 0.25))


def _least_s(step: Callable[[], object]) -> float:
    """Return the least CPU time of a call: other processes, which displace a step's data from the caches, make a call
    longer, never shorter."""
    times_s = []
    for _ in range(REPEATS):
        begin_s = time.thread_time()
        step()
        times_s.append(time.thread_time() - begin_s)
    return min(times_s)
