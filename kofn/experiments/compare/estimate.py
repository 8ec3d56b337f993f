"""Estimates of a cell's duration before its run, from the limits of its links and from the ceilings.

The estimates are rough on purpose: finished cells correct them (matrix.Timekeeper).
"""

from kofn.experiments.compare.ceiling import Ceiling
from kofn.experiments.compare.points import BLOCKED, Point

START_S, WORKER_S = 4.0, 0.4
"""The time of a run besides its iterations: for network, switch and controller, and for each worker."""

BOOKS_S = 0.7
"""The time to write and check the ledger of a million elements of one worker."""

COMPUTE_S = 0.012
"""The time of an iteration's computation and step, for the trained model."""

SCRIPT_S, SCRIPT_COMPUTE_S = 4.0, 0.15
"""A worker's time until its script has imported PyTorch, and the time of an iteration's computation."""

TO_TARGET = 220
"""Iterations of the trained model to its target."""

SERVER_COST = 2.0
"""The machine's work for a byte through a parameter server, divided by its work for a byte through the switch."""

TCP_COST = 0.3
"""The machine's work for a byte over TCP, divided by its work for a byte through the switch."""


def cell_s(point: Point, ceiling: Ceiling, iterations: int) -> float:
    setting = point.setting
    start_s = START_S + (SCRIPT_S if setting.model.scripted else WORKER_S) * setting.workers
    if setting.trained:
        return start_s + TO_TARGET * (COMPUTE_S + _blocked_s(point) + reduce_s(point, ceiling))
    books_s = 0.0 if not point.contender.able.ledger else BOOKS_S * setting.workers * setting.model.elements / 1e6
    compute_s = SCRIPT_COMPUTE_S * setting.workers if setting.model.scripted else 0.0
    return start_s + books_s + iterations * (compute_s + _blocked_s(point) + reduce_s(point, ceiling))


def reduce_s(point: Point, ceiling: Ceiling) -> float:
    """Return the time of an all-reduce: the time of the busiest link or of this machine, whichever is longer."""
    able, size = point.contender.able, point.gradient_bytes
    cost = SERVER_COST * size if able.server else size
    if not able.ledger:
        cost = TCP_COST * point.busiest_bytes
    return 8e-6 * max(point.busiest_bytes / point.setting.mbps, cost / ceiling.mbps)


def _blocked_s(point: Point) -> float:
    """Return the time that an iteration waits for a blocked worker."""
    waits = point.contender.collective not in ("fixed", "adaptive")
    return point.setting.model.blocked_ms / 1e3 if point.setting.straggler == BLOCKED and waits else 0.0


def assumed(workers: int) -> Ceiling:
    """Return the ceiling to assume before a measurement: two cores of a common machine."""
    return Ceiling(workers=workers, contributions_s=100_000.0, reduce_mbps=1200.0 / workers)
