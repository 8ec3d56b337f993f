"""Configurations and simulations for tests; CPU times are given, so that results do not depend on the machine."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from kofn.report.checks import conservation, identity
from kofn.sim.clock import VirtualClock
from kofn.sim.costs import Costs
from kofn.sim.learning import Learning
from kofn.sim.runner import simulate_times
from kofn.sim.simulation import Simulation
from kofn.sim.times import SimulatedTimes
from kofn.sim.worker_model import TrainingModel
from kofn_common.config.schema import Config
from kofn_common.results.folder import RunFolder, TrialFolder
from kofn_common.results.worker_metrics import WorkerMetrics, read_trial
from kofn_controller.job.journal import Journal
from kofn_host.training import Metrics

SMALL = """
[run]
name = "small"
trials = ["{objective}"]
target = {target}
max_iterations = {iterations}
[job]
workers = 3
words = 2
[policy]
late_gradient = "{rule}"
include_after = 0
age_weight = {weight}
age_limit = {limit}
[model]
hidden = [16]
compute_ms = 5
[[straggler]]
workers = [0, 1]
mean_ms = 2
[[straggler]]
workers = [2]
mean_ms = 20
"""

HARDLY_S = 1e-9
"""A cost that is given, and changes no time that a test looks at."""

COSTS = Costs(
    cores=2,
    wake_s=1e-4,
    encode_s=1e-4,
    packet_s=2e-5,
    switch_s=1e-5,
    apply_s=2e-4,
    report_s=3e-4,
    take_s=3e-4,
    decide_s=1e-3,
    forward_s=HARDLY_S,
    server_s=HARDLY_S,
    ring_step_s=HARDLY_S,
    ring_packet_s=HARDLY_S,
)
FREE = replace(
    COSTS, cores=0, wake_s=0, encode_s=0, packet_s=0, switch_s=0, apply_s=0, report_s=0, take_s=0, decide_s=0.02
)
"""Decisions take time, so not every iteration has one, and tests are short."""


def written(
    folder: Path,
    more: str = "",
    *,
    objective: str = "throughput",
    rule: str = "stash",
    weight: float = 1.0,
    limit: int = 1000,
    iterations: int = 60,
    target: float = 1.0,
) -> Path:
    """Write a small configuration file and return its path; `more` is appended to it."""
    path = folder / "small.toml"
    age = {"weight": weight, "limit": limit}
    text = SMALL.format(objective=objective, rule=rule, iterations=iterations, target=target, **age)
    path.write_text(text + more)
    return path


class Trained:
    """A simulation with training, in the first trial's folder."""

    def __init__(self, config: Config, out: Path, costs: Costs = COSTS, *, other_scale: int = 0) -> None:
        """Take `other_scale`: by how much less the last worker's values are scaled than the others'."""
        self.config = config = replace(config, policy=replace(config.policy, objective=config.run.trials[0]))
        (self.entry,) = RunFolder.create(out, config.run.trials[:1]).trials[0]
        self.learning = Learning(config)
        ranks = range(config.job.workers)
        self.models: list[Any] = [
            TrainingModel(config, rank, self.learning, Metrics(self.entry.metrics(rank))) for rank in ranks
        ]
        if other_scale:
            encoder = self.models[-1].encoder
            agreed = encoder._scale
            encoder._scale = lambda lanes: agreed(lanes) - other_scale
        clock = VirtualClock()
        journal = Journal(self.entry.decisions, clock.time)
        self.simulation = Simulation(config=config, models=self.models, costs=costs, clock=clock, journal=journal)

    def run(self) -> "Trained":
        """Run to the end and write the files."""
        with ExitStack() as files:
            files.enter_context(self.simulation.journal)
            for model in self.models:
                files.enter_context(model._metrics)
            self.simulation.run(lambda control_loop, virtual_s: None)
            for rank, model in enumerate(self.models):
                model.close(self.simulation.totals(rank))
        return self

    def check(self) -> None:
        """Check that replicas are identical, and that no gradient is lost or counted twice."""
        checked(self.entry, self.config.job.workers)

    def read(self) -> tuple[WorkerMetrics, ...]:
        """Return what the workers wrote."""
        return read_trial(self.entry, self.config.job.workers)

    def total(self, name: str) -> int:
        """Return the sum of a statistic over all workers."""
        return sum(getattr(worker.protocol.statistics, name) for worker in self.simulation.workers)


def checked(entry: TrialFolder, workers: int) -> None:
    """Check what must hold exactly."""
    read = read_trial(entry, workers)
    assert identity(read) is None
    found = conservation(entry, workers)
    assert (found.error, found.unchecked) == (None, None)
    assert {len(worker.iterations) for worker in read} == {read[0].iterations[-1].iteration}


def times(config: Config, costs: Costs = FREE) -> SimulatedTimes:
    """Return the times of the first trial, without training."""
    return simulate_times(config, costs, Console(quiet=True))[0]
