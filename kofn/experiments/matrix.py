"""The matrix of `kofn compare`: every scenario with every seed. A cell is an ordinary run in a folder of its own.

OUT/SCENARIO/seed-N.toml   the configuration, for `kofn run`
OUT/SCENARIO/seed-N/       the run's folder

A run is finished when it has a summary; a finished run is not repeated. The remains of an interrupted run are removed
before its repetition.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from msgspec import structs
from rich.console import Console

from kofn.report.summary import TrialSummary, stored_trials
from kofn.run.conclusion import summarised
from kofn.run.display import say
from kofn.run.errors import InterruptedRun, LeftoversError
from kofn.run.jobs import overridden
from kofn.run.plan import RunPlan, make_plan
from kofn.run.plugins import check_plugins
from kofn.run.preconditions import check_needs
from kofn.run.signals import deferred
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError, KofnError
from kofn_common.config.schema import Config
from kofn_common.results.errors import ResultsError
from kofn_common.results.folder import JobFolder, RunFolder

FOLDER = Path(__file__).parent

CarryOut = Callable[[RunPlan, Console], RunFolder]
"""A function that carries out a run and leaves the run's files; run.runner.execute carries out a run on the real
system."""


@contextlib.contextmanager
def of_scenario(name: str) -> Iterator[None]:
    """Add the scenario's name to a ConfigError of the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"scenario {name}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A configuration that is run with several seeds."""

    name: str
    config: Config

    def overridden(self, *, target: str | None, objectives: tuple[str, ...]) -> Self:
        """Return the scenario with the command line's choices. ConfigError names the conflict."""
        config = overridden(self.config, target=target, objectives=objectives)
        with of_scenario(self.name):
            config.check()
        return replace(self, config=config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One scenario with one seed."""

    scenario: Scenario
    seed: int
    folder: Path
    estimate_s: float | None = None
    """The expected duration, if it is known."""

    @property
    def trainings(self) -> int:
        return len(self.config.run.trials)

    @property
    def work(self) -> float:
        """The cell's weight in the matrix's time: estimated seconds, else the number of trainings."""
        return self.trainings if self.estimate_s is None else self.estimate_s

    @property
    def title(self) -> str:
        return f"{self.scenario.name}, seed {self.seed}"

    @property
    def source(self) -> Path:
        return self.folder.with_suffix(".toml")

    @property
    def config(self) -> Config:
        """The scenario's configuration with this seed."""
        run = structs.replace(
            self.scenario.config.run, name=f"{self.scenario.name}-{self.seed}", seed=self.seed, seeds=1
        )
        return structs.replace(self.scenario.config, run=run)

    def plan(self) -> RunPlan:
        """Write the configuration, and return the plan of its run. ConfigError names the conflict."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.source.write_text(to_toml(self.config))
        return make_plan(self.source, out=self.folder, quiet=True)

    def job(self) -> JobFolder:
        return RunFolder.at(self.folder, self.config.run.trials, [self.config.job.id]).jobs[0]

    def stored(self) -> tuple[TrialSummary, ...] | None:
        """Return the trials of a finished run; None for an unfinished run. Raise ConfigError if the folder has other
        content."""
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / "run.json").exists():
            raise ConfigError(f"{self.folder} is no run's folder: choose another --out, nothing is overwritten")
        try:
            effective = self.job().effective.read_text()
            trials = stored_trials(self.folder)
        except (FileNotFoundError, ValueError, ResultsError):
            return None
        if effective != to_toml(self.config.at_home(self.source.parent)):
            raise ConfigError(
                f"{self.folder} holds the results of another configuration: choose another --out, "
                "or the options of those results"
            )
        return trials


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The result of a cell; without trials the cell failed, or was not run."""

    cell: Cell
    trials: tuple[TrialSummary, ...] = ()
    error: str = ""


def by_scenario(results: Iterable[CellResult]) -> dict[str, list[CellResult]]:
    """Group results by their scenarios' names, in order."""
    found: dict[str, list[CellResult]] = {}
    for result in results:
        found.setdefault(result.cell.scenario.name, []).append(result)
    return found


def cells(scenarios: Sequence[Scenario], seeds: int, out: Path) -> list[Cell]:
    """Return all cells, seed by seed, so that an interrupted experiment has results of every scenario."""
    return [
        Cell(scenario=scenario, seed=seed, folder=out / scenario.name / f"seed-{seed}")
        for seed in range(1, seeds + 1)
        for scenario in scenarios
    ]


def check_cells(matrix: Sequence[Cell]) -> None:
    """Raise ConfigError for a missing plug-in, file or package of any cell, before the first run."""
    for name, cell in {cell.scenario.name: cell for cell in matrix}.items():
        config = cell.config.at(cell.source.parent)
        with of_scenario(name):
            check_plugins(config)
            check_needs(config)


def run_cells(matrix: Sequence[Cell], carry_out: CarryOut, console: Console) -> Iterator[CellResult]:
    """Run unfinished cells in turn; a failure does not stop the others."""
    stored = [cell.stored() for cell in matrix]  # before any run, because a wrong folder is an error
    left = [cell for cell, trials in zip(matrix, stored, strict=True) if trials is None]
    clock = Timekeeper(left)
    ran = _in_turn(left, carry_out, console)
    for number, (cell, trials) in enumerate(zip(matrix, stored, strict=True), 1):
        if trials is not None:
            say(console, f"[{number}/{len(matrix)}] {cell.title}: finished before")
            yield CellResult(cell=cell, trials=trials)
            continue
        count = f"{cell.trainings} training{'s' * (cell.trainings > 1)}"
        say(console, f"[{number}/{len(matrix)}] {cell.title}: {count}{clock.left()}", style="bold")
        result = next(ran)
        say(console, f"  {result.error or 'done'} after {clock.took(cell):.0f} s")
        yield result


def read_cells(matrix: Sequence[Cell]) -> Iterator[CellResult]:
    """Yield the results of all cells, without a run. The result of an unfinished cell has no trials."""
    for cell in matrix:
        trials = cell.stored()
        yield CellResult(cell=cell, trials=trials or (), error="" if trials else "not run yet")


def _in_turn(left: Sequence[Cell], carry_out: CarryOut, console: Console) -> Iterator[CellResult]:
    """Run a cell when its result is requested."""
    for number, cell in enumerate(left):
        yield _run(cell, carry_out, console, check=number == 0)


def _run(cell: Cell, carry_out: CarryOut, console: Console, *, check: bool) -> CellResult:
    """Run a cell; with `check`, measure the network first."""
    shutil.rmtree(cell.folder, ignore_errors=True)  # remains of an interrupted run
    plan = replace(cell.plan(), check=check)
    try:
        folder = carry_out(plan, console)
        with deferred():
            job, *_ = summarised(folder, plan.configs).jobs
    except (InterruptedRun, LeftoversError, ConfigError):
        raise
    except KofnError as error:
        return CellResult(cell=cell, error=f"FAILED: {error}")
    return CellResult(cell=cell, trials=job.trials)


class Timekeeper:
    """Estimates the remaining time, corrected by the durations of finished cells."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        """Begin with the `cells` to come; all or none of them have estimates."""
        self._left = sum(cell.work for cell in cells)
        self._estimated = any(cell.estimate_s is not None for cell in cells)
        self._done, self._spent_s = 0.0, 0.0
        self._begin = time.monotonic()

    def took(self, cell: Cell) -> float:
        """Record a cell's end; return the cell's duration in seconds."""
        before, self._begin = self._begin, time.monotonic()
        self._left, self._done = self._left - cell.work, self._done + cell.work
        self._spent_s += self._begin - before
        return self._begin - before

    def left(self) -> str:
        """Return the remaining time as text; empty while it is unknown."""
        if not (self._done or self._estimated):
            return ""
        return f", about {duration(self._left * (self._spent_s / self._done if self._done else 1.0))} left"


def duration(time_s: float) -> str:
    """Return a matrix's duration as text."""
    if time_s < 90:
        return f"{time_s:.0f} s"
    return f"{time_s / 60:.0f} min" if time_s < 5400 else f"{time_s / 3600:.1f} h"
