"""The control loop in virtual time: workers of known blocking, reports as they would send them.  No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.synthetic import EVENT_S, SERVICE_S
from kofn_common.config.policy import PolicySection
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Arrival, FloatArray
from kofn_controller.policy.control_loop import Change, ControlLoop

Rates = Callable[[int, int], float]
"""Mean blocking time in seconds of (rank, iteration)."""


@dataclass(kw_only=True)
class Cluster:
    """Workers that start every iteration together; those later than the k-th are cut off (late = "abort")."""

    control_loop: ControlLoop
    lambda_s: Rates
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    looking: bool = True  # at k after every report
    now_s: float = 0.0
    changes: list[Change] = field(default_factory=list)

    def iterate(self, iteration: int) -> None:
        """One iteration: what the switch sees, then what the workers report, with a look at k after each."""
        live = np.flatnonzero(self.control_loop.live).tolist()
        times_s = self.draw(iteration)
        end_s = np.sort(times_s)[min(self.control_loop.k, len(live)) - 1]
        for index in np.argsort(times_s):
            rank, time_s = live[index], float(times_s[index])
            if time_s <= end_s:
                stamp_us = int(1e6 * (self.now_s + time_s))
                self.arrive(rank, iteration, stamp_us)
        self.now_s += end_s
        for index, rank in enumerate(live):
            late = bool(times_s[index] > end_s)
            report = pb.Report(iteration=iteration, first_block_s=min(times_s[index], end_s), censored=late, late=late)
            assert self.control_loop.report(int(rank), report, self.now_s)
            self.look()

    def draw(self, iteration: int) -> FloatArray:
        """Draw the live workers' times of an iteration in seconds."""
        live = np.flatnonzero(self.control_loop.live).tolist()
        counts = [self.random.poisson(self.lambda_s(rank, iteration) / EVENT_S) for rank in live]
        return np.asarray(SERVICE_S + EVENT_S * np.array(counts) + self.random.exponential(0.0003, len(live)))

    def arrive(self, rank: int, iteration: int, stamp_us: int) -> None:
        """The switch's digest of a worker's first block."""
        arrival = Arrival(worker=rank, iteration=iteration, verdict="ADDED", timestamp_us=stamp_us)
        assert self.control_loop.measurements.arrival(arrival, self.now_s)

    def look(self) -> None:
        """Decide, if that is due."""
        if self.looking and self.control_loop.due(self.now_s) and (change := self.control_loop.choose(self.now_s)):
            self.changes.append(change)


def cluster(lambda_s: Rates, workers: int = 4, seed: int = 7, racks: int = 1, **policy: Any) -> Cluster:
    """Workers that are about to begin, all together; they have no gradients, which `progress` would go by."""
    policy = {"objective": "throughput"} | policy
    made = Cluster(
        control_loop=ControlLoop(workers=workers, policy=PolicySection(**policy), racks=racks),
        lambda_s=lambda_s,
        random=np.random.default_rng(seed),
    )
    made.control_loop.measurements.begin(0.0)
    return made
