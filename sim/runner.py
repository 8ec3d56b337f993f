"""`kofn simulate`: one configuration's passes in virtual time; the same files, summary and report as those of a run."""

import os
from dataclasses import asdict

from msgspec.structs import replace

from controller.journal import Journal
from host.metrics import Metrics
from run.config import Config
from run.errors import ConfigError
from run.folder import PassFolder, RunFolder
from sim.costs import Costs, measure
from sim.learning import Learning
from sim.pupil import Idler, Student
from sim.simulation import Simulation


def simulate(config: Config, folder: RunFolder, *, costs: Costs | None = None, cores: int | None = None) -> None:
    """Write what the processes of a run of this configuration would write."""
    check(config)
    costs = costs or measure(config)
    for (entry,) in folder.passes:
        simulate_pass(config, entry, costs, os.cpu_count() or 1 if cores is None else cores)


def simulate_pass(config: Config, entry: PassFolder, costs: Costs, cores: int) -> Simulation:
    """One objective."""
    config = replace(config, policy=replace(config.policy, objective=entry.objective))
    learning = Learning(config)
    students = [Student(config, rank, learning, Metrics(entry.metrics(rank))) for rank in range(config.job.workers)]
    simulation = build(config, students, costs, cores, entry.decisions)
    simulation.run()
    for rank, student in enumerate(students):
        student.close(_totals(simulation, rank))
    return simulation


def simulate_times(config: Config, costs: Costs, cores: int) -> Simulation:
    """How long iterations take, and which k is chosen: without a model, up to run.max_iterations."""
    idlers = [Idler(config) for _ in range(config.job.workers)]
    simulation = build(config, idlers, costs, cores, None)
    simulation.run()
    return simulation


def build(config, pupils, costs, cores, journal_path):
    simulation = Simulation(config=config, pupils=pupils, costs=costs, cores=cores, journal=Journal(None))
    if journal_path is not None:
        simulation.controller.journal = Journal(journal_path, simulation.clock.time)
    return simulation


def check(config: Config) -> None:
    """ConfigError for what virtual time has not."""
    for event in config.event:
        if event.objective is None:
            raise ConfigError("event.kill and event.start are not simulated: event.objective is")
    if config.job.start_workers not in (None, config.job.workers):
        raise ConfigError("job.start_workers is not simulated: all workers start together")


def _totals(simulation: Simulation, rank: int) -> dict[str, object]:
    worker, up, down = simulation.workers[rank], simulation.uplinks[rank], simulation.downlinks[rank]
    traffic = {
        "bytes_sent": up.bytes,
        "bytes_received": down.bytes,
        "packets_sent": up.packets,
        "packets_received": down.packets,
    }
    return traffic | asdict(worker.protocol.statistics) | {"reason": simulation.reasons[rank]}
