"""How long an experiment takes, before it begins: a guess from a short simulation of each point by iterations."""

import contextlib
import time
from collections.abc import Sequence

from msgspec.structs import replace

from kofn.experiments.cells import Cell
from kofn.experiments.experiment_file import RUN, SCALE, SIMULATE, ExperimentFile
from kofn_common.config.errors import KofnError
from kofn_common.config.schema import Config
from kofn_host.workload import load_workload

SETUP_S = 4.0
"""The time in which a real run makes and removes its network."""

SIMULATED_S, PACKET_S = 0.5, 40e-6
"""The time of a simulated run without its iterations, and of a packet of 32-bit values to the switch and back."""

SHORT = 50
"""The iterations of the simulation by iterations."""


def expected_s(file: ExperimentFile, cells: Sequence[Cell], at_a_time: int) -> float | None:
    """Return the expected duration, if every training takes as many iterations as it may; None if it is unknown."""
    if file.section.mode not in (RUN, SIMULATE, SCALE):
        return None
    total_s, seeds = 0.0, file.section.seeds
    for cell in cells:
        if cell.seed == 1:
            taken_s = _cell_s(file.section.mode, cell)
            if taken_s is None:
                return None
            total_s += seeds * taken_s
    return total_s / at_a_time


def _cell_s(mode: str, cell: Cell) -> float | None:
    """Return the expected duration of a cell; None if it is unknown."""
    from kofn.sim.scale.simulation import simulate_scale  # noqa: PLC0415  # the model and its libraries

    config = cell.config
    iterations = config.run.max_iterations
    short = replace(config, run=replace(config.run, max_iterations=min(SHORT, iterations)), event=(), fault=())
    begin = time.perf_counter()
    iteration_s = 0.0
    with contextlib.suppress(KofnError):
        (found,) = simulate_scale(short, config.run.trials[0], lambda iteration, virtual_s: None)
        iteration_s = found.mean_iteration_s
    if mode == SCALE:
        return (time.perf_counter() - begin) * iterations / min(SHORT, iterations)
    elements = _elements(config.at(cell.source.parent))
    if elements is None:
        return None
    packets = config.job.workers * -(-elements // config.job.words)
    if mode == SIMULATE:
        return SIMULATED_S + iterations * packets * PACKET_S
    sent_s = 8e-6 * 4 * elements / config.network.link_mbps if config.network.link_mbps else 0.0
    return SETUP_S + iterations * max(iteration_s, sent_s)


def _elements(config: Config) -> int | None:
    with contextlib.suppress(KofnError):
        return int(load_workload(config, 0).parameters.size)
    return None
