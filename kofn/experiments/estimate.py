"""How long an experiment takes, before it begins: from the size of the gradients, the time of one gradient, and a short
simulation by iterations."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kofn.experiments.cells import Cell
from kofn.experiments.experiment_file import MODES, SCALE, SIMULATE, ExperimentFile
from kofn_common.config.errors import KofnError
from kofn_common.config.schema import Config
from kofn_common.wire.packet import WORD_BYTES
from kofn_host.errors import HostError
from kofn_host.training import JobCoding
from kofn_host.workload import load_workload, metric_of

SETUP_S = 4.0
"""The time in which a real run makes and removes its network."""

SIMULATED_S, WORKER_S, PACKET_S = 0.5, 0.8e-3, 15e-6
"""The processor time of a simulated run without its iterations; of a worker's iteration without gradient and packets;
of a packet of the gradient with its answer. They come from simulations of 2 to 8 workers with 5 to 3,886 packets."""

SHORT = 50
"""The iterations of the simulation by iterations."""

EARLY = 100
"""The iterations of a training in `ExpectedDuration.early_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDuration:
    """The expected duration of an experiment."""

    most_s: float
    """If every training takes as many iterations as it may."""
    early_s: float
    """If every training that has a target reaches it after EARLY iterations."""


def expected(file: ExperimentFile, cells: Sequence[Cell], at_a_time: int) -> ExpectedDuration | None:
    """Return the expected duration; None if it is unknown."""
    mode, most_s, early_s = file.section.mode, 0.0, 0.0
    if mode not in MODES:
        return None
    for cell in cells:
        if cell.seed > 1:
            continue
        try:
            config = cell.config.at(cell.source.parent)
            setup_s, iteration_s = _times_s(mode, config)
            target = mode != SCALE and metric_of(config) is not None
        except (KofnError, HostError):
            return None
        most = config.run.max_iterations
        most_s += setup_s + most * iteration_s
        early_s += setup_s + (min(EARLY, most) if target else most) * iteration_s
    times = file.section.seeds / at_a_time
    return ExpectedDuration(most_s=times * most_s, early_s=times * early_s)


def _times_s(mode: str, config: Config) -> tuple[float, float]:
    """Return the expected duration of a cell without its iterations, and of an iteration."""
    if mode == SCALE:
        return 0.0, _scaled_s(config)[0]
    workload, job, link_mbps = load_workload(config, 0), config.job, config.network.link_mbps
    packets = len(JobCoding.of(job, config.compress, workload.parameters.size).planner.first().blocks)
    if mode == SIMULATE:
        workload.gradient(1)  # sets up the arithmetic
        begin = time.perf_counter()
        workload.gradient(2)
        return SIMULATED_S, job.workers * (time.perf_counter() - begin + WORKER_S + packets * PACKET_S)
    sent_s = 8e-6 * packets * job.words * WORD_BYTES / link_mbps if link_mbps else 0.0
    return SETUP_S, max(sent_s, _scaled_s(config)[1])


def _scaled_s(config: Config) -> tuple[float, float]:
    """Return how long an iteration takes to simulate by iterations, and its simulated duration."""
    from kofn.sim.scale.simulation import simulate_scale  # noqa: PLC0415  # the model and its libraries

    iterations = min(SHORT, config.run.max_iterations)
    short = replace(config, run=replace(config.run, max_iterations=iterations), event=(), fault=())
    begin = time.perf_counter()
    (found,) = simulate_scale(short, config.run.trials[0], lambda iteration, virtual_s: None)
    return (time.perf_counter() - begin) / iterations, found.mean_iteration_s
