"""Simulates the trials of a configuration with workers, sums, and the control loop of a run."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as renewed

import numpy as np
from msgspec.structs import replace

from kofn.sim.scale.fleet import Ended, Fleet, Gradients
from kofn.sim.scale.network import Transfers, ends
from kofn.sim.scale.sums import OpenSums, Sum, described
from kofn.sim.times import ScaledTimes
from kofn_common.config.late_rules import RULES, LatePolicy
from kofn_common.config.schema import Config
from kofn_controller.estimate.measurements import FloatArray
from kofn_controller.estimate.reports import Reports
from kofn_controller.policy.control_loop import ControlLoop
from kofn_controller.policy.decision_pacer import QUIET_S, DecisionPacer
from kofn_controller.policy.objective import objective
from kofn_controller.policy.process import IntArray
from kofn_host.workload import straggler_class

CELLS = 2**17
"""The largest product of workers and seeds that are simulated side by side; a single seed may have more workers."""

JITTER_S = 1e-4
"""The largest random time that is added to a gradient's time. It stands for the delay of wake-ups, and without it equal
times would tie."""

DECIDE_S, DECIDE_WORKER_S = 3e-3, 3e-6
"""The controller's time for a decision: a constant part, and a part for each worker. Both were measured with blocking
that is not a Poisson process."""

Progress = Callable[[int, float], None]
"""A function that takes the iteration and the virtual time."""


def simulate_scale(config: Config, name: str, progress: Progress) -> list[ScaledTimes]:
    """Simulate an objective up to run.max_iterations, with run.seeds seeds from run.seed on.

    Seeds are simulated side by side if the objective fixes k; else each seed is simulated alone, with a separate
    control loop.
    """
    config = replace(config, policy=replace(config.policy, objective=name))
    seeds = range(config.run.seed, config.run.seed + config.run.seeds)
    fixed = objective(name, config.job.workers).fixed and not config.event
    at_once = max(CELLS // config.job.workers, 1) if fixed else 1
    found = []
    for first in range(0, len(seeds), at_once):
        begin = time.perf_counter()
        some = _Simulation(config=config, seeds=seeds[first : first + at_once], adaptive=not fixed)
        some.run(progress)
        found += some.results((time.perf_counter() - begin) / len(some.seeds))
    return found


@dataclass(slots=True, kw_only=True)
class _Simulation:
    """A simulation of some seeds of an objective; with `adaptive`, of a single seed."""

    config: Config
    seeds: Sequence[int]
    adaptive: bool
    loop: ControlLoop = field(init=False)
    links: Transfers = field(init=False)
    now_s: FloatArray = field(init=False)  # (seeds, 1)
    lengths_s: list[FloatArray] = field(default_factory=list)  # by iteration: (seeds,)
    sums: list[Sum] = field(default_factory=list)
    ks: IntArray = field(init=False)  # (seeds,)
    changes: int = 0
    _pacer: DecisionPacer = field(default_factory=DecisionPacer)
    _extra_s: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        job = self.config.job
        self.loop = ControlLoop(
            workers=job.workers, policy=self.config.policy, average=self.config.model.average, racks=job.racks
        )
        self.links = Transfers(config=self.config)
        self.now_s = np.zeros((len(self.seeds), 1))
        self.ks = np.full(len(self.seeds), self.loop.k)

    def run(self, progress: Progress) -> None:
        """Simulate to the last iteration."""
        config, shape = self.config, (len(self.seeds), self.config.job.workers)
        fleet, waiting = (
            Fleet(shape=shape, overhead_s=self.links.overhead_s, way_s=self.links.way_s),
            OpenSums(shape=shape),
        )
        blocking = straggler_class(config).together(config, self.seeds)
        jitters = [np.random.default_rng([seed, config.job.workers, len(config.shock)]) for seed in self.seeds]
        self.loop.measurements.begin(0.0)
        for iteration in range(1, config.run.max_iterations + 1):
            self._extra_s = self.links.extra_s(iteration - 1)

            def draw(begun_s: FloatArray, batch: int, iteration: int = iteration) -> FloatArray:
                random_s = np.stack([JITTER_S * jitter.random(shape[1]) for jitter in jitters])
                random_s += blocking.blocking_s(iteration, self.now_s + begun_s, batch)
                return np.asarray(random_s + blocking.compute_s(iteration) + self._extra_s)

            policy: LatePolicy = self.loop.late_policy
            ended = fleet.iterate(iteration, RULES[policy.rule], draw, lambda points: ends(config, self.ks, points))
            found = waiting.add(ended, iteration, RULES[policy.rule], policy)
            began_s, self.now_s = self.now_s, self.now_s + ended.length_s + fleet.overhead_s
            self.lengths_s.append((self.now_s - began_s)[:, 0])
            self.sums.append(found)
            if self.adaptive:
                self._report(iteration, ended, found, float(began_s[0, 0]))
                self._decide(iteration)
            progress(iteration, float(self.now_s[0, 0]))

    def _report(self, iteration: int, ended: Ended, found: Sum, began_s: float) -> None:
        """Give the control loop the workers' reports about old gradients, then about the iteration's gradients."""
        aggregate = described(found, iteration, int(self.ks[0]), self.config.scale)
        if ended.old.any():
            ranks = np.flatnonzero(ended.old[0])
            reports = self._reports(ranks, ended.before, iteration, began_s + ended.old_s[0, ranks])
            self.loop.reports(renewed(reports, late=np.ones(len(ranks), np.bool_)), aggregate)
        ranks = np.flatnonzero(ended.included[0] | ended.given_up[0])
        reports = self._reports(ranks, ended.latest, iteration, np.full(len(ranks), float(self.now_s[0, 0])))
        censored = ended.given_up[0, ranks]
        spent_s = np.where(censored, float(ended.length_s[0, 0]), reports.first_block_s)
        self.loop.reports(
            renewed(reports, censored=censored, late=reports.late | censored, first_block_s=spent_s), aggregate
        )
        self._pacer.reported(float(self.now_s[0, 0]))

    def _reports(self, ranks: IntArray, gradients: Gradients, iteration: int, now_s: FloatArray) -> Reports:
        """Return the reports of workers about their gradients."""
        begun_in, extra_s = gradients.begun_in[0, ranks], self._extra_s[ranks]
        first_block_s = gradients.took_s[0, ranks] - extra_s
        return Reports(
            rank=ranks,
            iteration=begun_in,
            first_block_s=first_block_s,
            iteration_s=np.maximum(self.lengths_s[-1][0], first_block_s + 1e-9),
            link_wait_s=extra_s if self.config.link else None,
            censored=np.zeros(len(ranks), np.bool_),
            late=begun_in < iteration,
            now_s=now_s,
        )

    def _decide(self, iteration: int) -> None:
        """Choose k and rule if a decision is due and the controller has time for it. The k and the rule hold from the
        next iteration on."""
        now_s, changes = float(self.now_s[0, 0]) + QUIET_S, []
        for event in self.config.event:
            if event.at_iteration == iteration and event.objective is not None:
                changes.append(self.loop.set_objective(event.objective, now_s))
        if self._pacer.now(now_s) and self.loop.due(now_s):
            changes.append(self.loop.choose(now_s))
            self._pacer.decided(now_s, now_s + DECIDE_S + DECIDE_WORKER_S * self.config.job.workers)
        self.changes += sum(change is not None for change in changes)
        self.ks[:] = self.loop.k

    def results(self, wall_s: float) -> list[ScaledTimes]:
        """Return the results, seed by seed."""
        lengths_s, model = np.array(self.lengths_s), self.config.scale
        progress = np.array([found.progress(model) for found in self.sums])
        gradients, ages = (np.array([getattr(found, name) for found in self.sums]) for name in ("gradients", "age"))
        return [
            ScaledTimes(
                **ScaledTimes.measured(
                    self.loop, lengths_s[:, at], float(self.now_s[at, 0]), changes=self.changes, wall_s=wall_s
                ),
                seed=seed,
                racks=self.config.job.racks,
                gradients=float(gradients[:, at].mean()),
                age=float(np.average(ages[:, at], weights=np.maximum(gradients[:, at], 1e-9))),
                progress_per_s=float(progress[:, at].sum() / lengths_s[:, at].sum()),
            )
            for at, seed in enumerate(self.seeds)
        ]
