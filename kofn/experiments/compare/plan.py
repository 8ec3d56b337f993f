"""The parts of a comparison: the axes that a command line chooses, and their cells."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from kofn.experiments.compare.ceiling import Ceiling, carried
from kofn.experiments.compare.estimate import cell_s
from kofn.experiments.compare.models import DIGITS, GPT, GradientModel
from kofn.experiments.compare.points import (
    BLOCKED,
    COLLECTIVES,
    IN_NETWORK,
    NONE,
    STRAGGLERS,
    Point,
    contenders,
    points,
)
from kofn.experiments.compare.switches import switch_cells
from kofn.experiments.matrix import Cell, cells
from kofn.run.switch_identity import bmv2
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import SWITCH
from kofn_common.config.k_bounds import bound_k
from kofn_common.config.plugins import CODECS
from kofn_common.config.plugins import COLLECTIVES as REGISTERED

SWITCH_RUN_S = 6.0
"""The time of a run of a few iterations that keeps every frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The command line's choices, and the defaults."""

    collectives: tuple[str, ...] = COLLECTIVES
    codecs: tuple[str, ...] = ("int32", "int8")
    models: tuple[str, ...] = (DIGITS, "1m")
    stragglers: tuple[str, ...] = STRAGGLERS
    workers: tuple[int, ...] = (4, 8)
    mbps: tuple[float, ...] = (100.0, 1000.0)
    seeds: int = 3
    iterations: int = 16
    """Iterations of replayed gradients."""
    k: int | None = None
    """The k of `fixed`; None: all workers but one."""
    target: str = "embedded"
    settings: tuple[str, ...] = ()
    quick: bool = False
    """Whether larger gradients are compared only without stragglers, and trainings only in the first codec with a
    worker blocked."""
    switches: bool = True
    """Whether the switches are compared as well, if both are installed."""

    def check(self) -> None:
        """Check the axes. ConfigError names the conflict."""
        for codec in self.codecs:
            CODECS.check(codec, "--codec")
        if GPT in self.models and importlib.util.find_spec("torch") is None:
            raise ConfigError(f"--model {GPT}: PyTorch is not installed: kofn/run/setup.sh torch, or pip install torch")
        if self.k is not None and self.k != bound_k(self.k, min(self.workers)):
            raise ConfigError(f"--k must be 1 to {min(self.workers)}, the least of --workers, got {self.k}")

    def wants(self, point: Point) -> bool:
        """Return whether a point of the axes is run: a quick comparison leaves out some points."""
        if not self.quick:
            return True
        setting, contender = point.setting, point.contender
        if setting.trained:
            return setting.straggler == BLOCKED and contender.codec not in self.codecs[1:]
        return setting.straggler == NONE and contender.collective not in ("fixed", "adaptive")


QUICK = Axes(workers=(4,), mbps=(100.0,), seeds=1, iterations=12, quick=True)
"""A comparison that takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """All cells of a comparison."""

    cells: tuple[Cell, ...]
    points: Mapping[str, Point]
    """The points of contenders, by scenario; cells of other scenarios compare the switches."""
    notes: tuple[str, ...]
    """Notes on requested links that this machine does not carry."""

    @classmethod
    def of(cls, axes: Axes, folder: Path, found: Sequence[GradientModel], ceilings: Mapping[int, Ceiling]) -> Self:
        """Return the plan, seed by seed and setting by setting: the contenders of a setting run one after another.

        `ceilings` are by number of workers. ConfigError names the conflict.
        """
        rates, notes = carried(axes.mbps, ceilings)
        compared = contenders(axes.collectives, axes.codecs)
        wanted = [point for point in points(found, axes.stragglers, rates, compared, axes.k) if axes.wants(point)]
        if not wanted:
            raise ConfigError("--quick leaves out all of these options' runs: choose other options, or omit --quick")
        by_name = {point.name: point for point in wanted}
        scenarios = [
            point.scenario(target=axes.target, iterations=axes.iterations, settings=axes.settings) for point in wanted
        ]
        matrix = cells(scenarios, axes.seeds, folder)
        estimated = [
            replace(cell, estimate_s=cell_s(point, ceilings[point.setting.workers], axes.iterations))
            for cell in matrix
            for point in (by_name[cell.scenario.name],)
        ]
        return cls(cells=(*_switches(axes, folder), *estimated), points=by_name, notes=tuple(notes))

    def rows(self) -> list[list[str]]:
        """Return a row for every model with a straggler scenario and a number of workers: rates and contenders."""
        found: dict[tuple[str, str, int], tuple[dict[str, None], dict[str, None]]] = {}
        for point in self.points.values():
            setting = point.setting
            rates, names = found.setdefault((setting.model.title, setting.straggler, setting.workers), ({}, {}))
            rates[f"{setting.mbps:g}"] = names[point.contender.name] = None
        return [[*map(str, key), ", ".join(rates), f"{len(names)}"] for key, (rates, names) in found.items()]

    def contenders(self) -> dict[str, list[str]]:
        """Return the names of each model's contenders."""
        found: dict[str, dict[str, None]] = {}
        for point in self.points.values():
            found.setdefault(point.setting.model.name, {})[point.contender.name] = None
        return {model: list(names) for model, names in found.items()}

    @property
    def estimate_s(self) -> float:
        """The estimated duration of all cells, finished or not."""
        return sum(cell.work for cell in self.cells)

    @property
    def left_s(self) -> float:
        """The estimated duration of unfinished cells. Raise ConfigError if a cell's folder has other content."""
        return sum(cell.work for cell in self.cells if cell.stored() is None)


def _switches(axes: Axes, folder: Path) -> list[Cell]:
    """Return the runs that compare the switches, if both switches are installed and wanted."""
    if not axes.switches or bmv2() is None:
        return []
    return [replace(cell, estimate_s=SWITCH_RUN_S) for cell in switch_cells(folder, axes.codecs, axes.settings)]


def available(asked: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return the collectives that work here, and notes on the others. Raise ConfigError if a requested collective does
    not work."""
    wanted = tuple(name for name in COLLECTIVES if name in asked or not asked)
    wanted += tuple(name for name in dict.fromkeys(asked) if name not in wanted)
    missing = {name: words for name in wanted if (words := _missing(name))}
    for name, words in missing.items():
        if asked:
            raise ConfigError(f"--collective {name}: {words}")
    notes = [f"{name} is left out: {words}" for name, words in missing.items()]
    return tuple(name for name in wanted if name not in missing), notes


def _missing(collective: str) -> str:
    """Return the package that a collective lacks, or an empty text. Raise ConfigError for an unknown collective."""
    if collective in IN_NETWORK:
        return ""
    if REGISTERED.find(collective) is None:
        names = ", ".join((*IN_NETWORK, *(name for name in REGISTERED.names if name != SWITCH)))
        raise ConfigError(f"--collective must be {names} or module:Name, got {collective}")
    return load_collective(collective).missing()
