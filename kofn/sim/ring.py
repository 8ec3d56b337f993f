"""A training whose gradients the workers sum in a ring, by the ring's time model: no packet is simulated.

An all-reduce begins when the slowest worker has its gradient and all workers have agreed on the call. It has 2 (n - 1)
steps, and each worker sends 1/n of the gradient in a step. A step ends when the slowest worker has sent, received and
added its segment over the slowest link (Patarasuk and Yuan 2009; host/kofn_host/collectives/kinds/ring.py).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kofn.sim.collective_costs import PAYLOAD_BYTES
from kofn.sim.network import BURST_BYTES, BURST_S, LATENCY_S
from kofn.sim.trial import VirtualTrial
from kofn.sim.worker import Surroundings, wake_s
from kofn.sim.worker_model import RingModel
from kofn_common.config.job import JobSection
from kofn_common.config.late_rules import LatePolicy
from kofn_common.config.network import NetworkSection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_host.compression.aggregate import Aggregate
from kofn_host.training import Step
from kofn_host.training.loop import Work, report_of
from kofn_host.workload import load_stragglers

AROUND_BYTES = 66 + 66 / 2
"""The bytes on a link around a packet's payload: the packet's headers, and half of an acknowledgement."""


class RingLinks:
    """The links of the workers, by rank, and of a tree's leaves. The slowest determines a step: a token bucket, as in
    network.h."""

    def __init__(self, job: JobSection, network: NetworkSection) -> None:
        tree = job.racks > 1  # a rack's last worker alone sends through its leaf's link to the root
        self.mbps = [network.link_mbps] * job.workers + [network.uplink_mbps] * tree
        self.hop_s = (4 if tree else 2) * LATENCY_S  # from a worker to the next one
        self._free_s = float("-inf")  # when all bytes that left are paid for

    def sent_s(self, now_s: float, payload_bytes: int, packets: int) -> float:
        """Return when a segment that is sent now has left."""
        if (slowest := min((mbps for mbps in self.mbps if mbps), default=None)) is None:
            return now_s
        byte_s, on_link = 8e-6 / slowest, payload_bytes + packets * AROUND_BYTES
        self._free_s = max(self._free_s, now_s - max(BURST_S, BURST_BYTES * byte_s)) + on_link * byte_s
        return max(now_s, self._free_s)


class RingWorker:
    """A worker of a ring: it computes, hands over its gradient with `give`, and applies the mean."""

    def __init__(self, around: Surroundings, rank: int, model: RingModel, give: Callable[[int, Work], None]) -> None:
        self._around, self._rank, self._model, self._give = around, rank, model, give
        self._blocking = load_stragglers(around.config, rank)
        self._wakes = random.Random(f"{around.config.run.seed}/{rank}")
        self.iteration = 0
        self._started_s = 0.0  # when the parameters were ready
        self._step: Step

    def start(self) -> None:
        """Begin the next iteration."""
        self.iteration += 1
        around = self._around
        self._started_s = now_s = around.clock.time()
        blocking_s = self._blocking.blocking_s(self.iteration, 0, now_s)
        ready_s = now_s + self._blocking.compute_s(self.iteration) + blocking_s + self.wake_s()
        around.clock.after(ready_s, around.machine.work, around.costs.encode_s, self._computed, blocking_s)

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Do nothing: no gradient is late."""

    def wake_s(self) -> float:
        """Return how late a thread of the worker wakes up."""
        return wake_s(self._wakes, self._around.costs)

    def _computed(self, blocking_s: float) -> None:
        work = self._model.compute(self.iteration, 0, blocking_s)
        first_block_s = self._around.clock.time() - self._started_s
        self._step = Step(iteration=self.iteration, started=self._started_s, first_block_s=first_block_s, work=work)
        self._give(self._rank, work)

    def take(self, done: Aggregate) -> None:
        """Apply the mean of all gradients."""
        around, awake_s = self._around, self._around.clock.time() + self.wake_s()
        around.clock.after(awake_s, around.machine.work, around.costs.apply_s, self._apply, done)

    def _apply(self, done: Aggregate) -> None:
        around, step, now_s = self._around, self._step, self._around.clock.time()
        assert step.work is not None
        reason = self._model.step(done, step, now_s)
        held, iteration_s = (done.gradients, done.contributors), now_s - step.started
        report = report_of(step, step.work, self._model.direction, late=False, held=held, iteration_s=iteration_s)
        around.report(self._rank, report)
        if reason is None:
            around.machine.spend(around.costs.report_s)
            self.start()
        else:
            around.finished(self._rank, reason)


@dataclass(slots=True, kw_only=True)
class RingSimulation(VirtualTrial):
    """A training by the time model of a ring."""

    models: Sequence[RingModel]
    workers: list[RingWorker] = field(init=False)
    links: RingLinks = field(init=False)
    _works: dict[int, Work] = field(default_factory=dict)
    """By rank: the gradients of the current iteration."""

    def _connect(self, around: Surroundings) -> None:
        ranks = range(self.config.job.workers)
        self.links = RingLinks(self.config.job, self.config.network)
        self.workers = [RingWorker(around, rank, self.models[rank], self._give) for rank in ranks]

    def _give(self, rank: int, work: Work) -> None:
        """Take a worker's gradient; begin the all-reduce once all gradients are there."""
        self._works[rank] = work
        n = len(self.workers)
        if len(self._works) == n:  # worker 0 hears of the last call, and tells all workers
            agreed_s = self.clock.time() + 2 * self.links.hop_s + self.workers[0].wake_s() + 2 * self._slowest_wake_s()
            self.clock.after(agreed_s, self._begin_step, 2 * (n - 1))

    def _begin_step(self, left: int) -> None:
        """Begin a step, or end the iteration if no step is left.

        All packets of a segment but the last are received and added while later packets are on their way.
        """
        if not left:
            self._end()
            return
        segment_bytes = 4 * -(-self.models[0].elements // len(self.workers))  # of the largest segment
        packets = -(-segment_bytes // PAYLOAD_BYTES)
        busy_s = self._spend((packets - 1) * self.costs.ring_packet_s)
        came_s = self.links.sent_s(self.clock.time(), segment_bytes, packets) + self.links.hop_s
        self.clock.after(max(came_s, busy_s) + self._slowest_wake_s(), self._end_step, left)

    def _end_step(self, left: int) -> None:
        """Receive and add a segment's last packet."""
        self.clock.after(self._spend(self.costs.ring_step_s), self._begin_step, left - 1)

    def _end(self) -> None:
        works, iteration = [self._works[rank] for rank in range(len(self.workers))], self.workers[0].iteration
        self._works.clear()
        self._ended(iteration)
        done = self.models[0].mean(iteration, works)
        for worker in self.workers:
            worker.take(done)

    def _spend(self, duration_s: float) -> float:
        """Use CPU time at each worker; return the time at which the last worker is done."""
        return max(self.machine.spend(duration_s) for _ in self.workers)

    def _slowest_wake_s(self) -> float:
        return max(worker.wake_s() for worker in self.workers)

    # -- VirtualTrial

    def totals(self, rank: int) -> dict[str, Any]:
        n = len(self.workers)
        sent = (self.workers[rank].iteration * 2 * (n - 1) * 4 * self.models[0].elements) // n
        return {"bytes_sent": sent, "bytes_received": sent, "reason": self.reasons[rank]}

    def _iteration(self, rank: int) -> int:
        return self.workers[rank].iteration

    def _set_k(self, k: int) -> None:
        """Do nothing: every sum needs all workers."""

    def _set_link(self, rank: int, link: pb.Link) -> None:
        """Do nothing: no packets are paced."""

    def _shape(self, rank: int, mbps: float) -> None:
        self.links.mbps[rank] = mbps
