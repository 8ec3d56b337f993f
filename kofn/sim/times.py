"""The result of a simulation without training: the duration of iterations, and k."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from kofn.report.table import PlainTable
from kofn.sim.simulation import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTimes:
    """One trial; times in seconds."""

    objective: str
    workers: int
    iterations: int
    virtual_s: float  # until the first worker had finished the last iteration
    wall_s: float  # the simulation's real time
    mean_iteration_s: float
    predicted_s: float | None  # for the last k; None without a choice
    changes: int
    k: int  # the last one

    @classmethod
    def of(cls, simulation: Simulation, objective: str, wall_s: float) -> Self:
        """Return the times of a simulation that has ended."""
        control_loop, iterations = simulation.controller.control_loop, simulation.config.run.max_iterations
        forecast = control_loop.choice.forecast if control_loop.choice else None
        return cls(
            objective=objective,
            workers=control_loop.workers,
            iterations=iterations,
            virtual_s=simulation.first_s,
            wall_s=wall_s,
            mean_iteration_s=simulation.first_s / iterations,
            predicted_s=float(forecast.predicted_s[control_loop.k - 1]) + forecast.overhead_s if forecast else None,
            changes=simulation.controller.changes,
            k=control_loop.k,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def table(results: list[SimulatedTimes]) -> PlainTable:
    """Return a table for people: milliseconds an iteration."""
    headings = ["trial", "n", "iterations", "virtual", "wall", "k", "changes", "iteration", "predicted"]
    return PlainTable(headings, [_row(one) for one in results])


def _row(one: SimulatedTimes) -> list[str]:
    return [
        one.objective,
        f"{one.workers}",
        f"{one.iterations:,}",
        f"{one.virtual_s:.1f} s",
        f"{one.wall_s:.1f} s",
        f"{one.k}",
        f"{one.changes}",
        f"{1e3 * one.mean_iteration_s:.2f} ms",
        "-" if one.predicted_s is None else f"{1e3 * one.predicted_s:.2f} ms",
    ]
