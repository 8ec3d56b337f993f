"""The results of simulations without training: the duration of iterations, and k."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from kofn.report.table import PlainTable
from kofn.sim.trial import VirtualTrial
from kofn_controller.policy.control_loop import ControlLoop

QUANTILES = {"q05_s": 0.05, "q50_s": 0.5, "q95_s": 0.95}
"""Quantiles of the iteration time, by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTimes:
    """The results of a trial; times in seconds."""

    objective: str
    workers: int
    iterations: int
    virtual_s: float  # until the first worker had finished the last iteration
    wall_s: float  # the simulation's real time
    mean_iteration_s: float
    q05_s: float
    q50_s: float
    q95_s: float
    predicted_s: float | None  # predicted time of an iteration with the last k; None if no k was chosen
    changes: int
    k: int  # the last k
    late_gradient: str  # the last rule

    @classmethod
    def of(cls, simulation: VirtualTrial, wall_s: float) -> Self:
        """Return the times of a simulation that has ended."""
        lengths_s = np.diff(simulation.ends_s, prepend=0.0)
        loop, changes = simulation.controller.control_loop, simulation.controller.changes
        return cls(**cls.measured(loop, lengths_s, simulation.first_s, changes=changes, wall_s=wall_s))

    @staticmethod
    def measured(
        loop: ControlLoop, lengths_s: npt.NDArray[np.float64], virtual_s: float, *, changes: int, wall_s: float
    ) -> dict[str, Any]:
        """Return the fields of a trial whose iterations have these lengths, and which took `virtual_s`."""
        forecast = loop.choice.forecast if loop.choice else None
        return {
            "objective": loop.goal.name,
            "workers": loop.workers,
            "iterations": len(lengths_s),
            "virtual_s": virtual_s,
            "wall_s": wall_s,
            "mean_iteration_s": virtual_s / len(lengths_s),
            **{name: float(np.quantile(lengths_s, level)) for name, level in QUANTILES.items()},
            "predicted_s": float(forecast.predicted_s[loop.k - 1]) + forecast.overhead_s if forecast else None,
            "changes": changes,
            "k": loop.k,
            "late_gradient": loop.late_policy.rule,
        }

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> dict[str, str]:
        """Return the cells of the trial's row in a table, by heading."""
        return {
            "trial": self.objective,
            "n": f"{self.workers:,}",
            "iterations": f"{self.iterations:,}",
            "virtual": f"{self.virtual_s:.1f} s",
            "wall": f"{self.wall_s:.1f} s",
            "k": f"{self.k:,}",
            "rule": self.late_gradient,
            "changes": f"{self.changes}",
            "iteration": _milliseconds(self.mean_iteration_s),
            "5 to 95 %": f"{1e3 * self.q05_s:.2f} to {_milliseconds(self.q95_s)}",
            "predicted": "-" if self.predicted_s is None else _milliseconds(self.predicted_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledTimes(SimulatedTimes):
    """The results of a trial of `--scale` with one seed."""

    seed: int
    racks: int
    gradients: float  # mean number of gradients in a sum
    age: float  # mean age of a gradient in a sum, in iterations
    progress_per_s: float  # in iterations with exact and fresh gradients (kofn/sim/scale/sums.py)

    def cells(self) -> dict[str, str]:
        more = {
            "gradients": f"{self.gradients:,.1f}",
            "age": f"{self.age:.2f}",
            "progress": f"{self.progress_per_s:.3g}/s",
        }
        return SimulatedTimes.cells(self) | {"seed": f"{self.seed}"} | more


def table(results: Sequence[SimulatedTimes]) -> PlainTable:
    """Return a table with a row for each trial."""
    rows = [times.cells() for times in results]
    return PlainTable(list(rows[0]), [list(row.values()) for row in rows])


def _milliseconds(time_s: float) -> str:
    return f"{1e3 * time_s:.2f} ms"
