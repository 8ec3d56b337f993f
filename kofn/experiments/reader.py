"""`kofn.read`: the folder of a run, of a run with several seeds, or of an experiment, as tidy data frames.

>>> import kofn
>>> kofn.read("no-such-folder")  # doctest: +ELLIPSIS
Traceback (most recent call last):
kofn_common.config.errors.ConfigError: no-such-folder must be the folder of a run or an experiment: ...
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kofn.experiments.cells import Cell, RowFile, cells_of
from kofn.experiments.experiment_file import HOOKS, ExperimentFile
from kofn.experiments.result_columns import TRIAL
from kofn.report.frames import TABLES, DerivedValues, TrialSetting
from kofn.report.reader import Run, Seeds
from kofn.report.results import SEED, SeveralRuns
from kofn.report.summary import TrialSummary
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_common.results.folder import TrialFolder
from kofn_common.results.record import FILE, read_record
from kofn_common.results.worker_metrics import WorkerMetrics, read_trial

EXPERIMENT = "experiment.toml"
"""The experiment file in an experiment's folder."""

FAULTS = ("identity_error", "conservation_error", "objective_fault", "fault")
"""The columns that say why a trial is not sound; `fault` is a column of the file's functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """A finished trial, for functions that return further columns."""

    cell: Cell
    folder: TrialFolder
    summary: TrialSummary

    @property
    def config(self) -> Config:
        """The configuration with absolute paths; its plug-ins can be loaded."""
        return self.cell.config.at(self.cell.source.parent)

    def metrics(self) -> tuple[WorkerMetrics, ...]:
        """Return the metrics of every worker. Raise ResultsError if a file is missing."""
        return read_trial(self.folder, self.config.job.workers)


class Experiment(SeveralRuns):
    """The results of an experiment: those of its finished cells.

    Columns with the axes' names, `contender` and `seed` name a row's cell. In a mode without runs there is only
    `summary`.
    """

    contender = "contender"

    def __init__(self, path: Path) -> None:
        self.file = ExperimentFile.load(path / EXPERIMENT)
        self._path = path

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._path

    @property
    def axes(self) -> Sequence[str]:
        return [axis.name for axis in self.file.axes]

    @property
    def baseline(self) -> str | None:
        """The file's baseline; None if it has no results."""
        name = self.file.section.baseline
        return name if name in set(self.summary["contender"]) else None

    def known(self, column: str) -> Sequence[object]:
        named = {axis.name: list(axis.values) for axis in self.file.axes} | {"contender": self.file.contenders}
        return named.get(column) or super().known(column)

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, whether or not they are finished."""
        return cells_of(self.file, self.folder)

    @cached_property
    def finished(self) -> list[FinishedTrial]:
        """The trials of finished cells; none in a mode without runs. Raise ConfigError if a cell's folder has the
        results of another configuration."""
        if self.file.rows_only:
            return []
        return [
            FinishedTrial(cell=cell, folder=cell.trial, summary=summary)
            for cell in self.cells
            if (summary := cell.stored()) is not None
        ]

    @property
    def left(self) -> list[Cell]:
        """The unfinished cells."""
        if self.file.rows_only:
            known = RowFile(self.folder).rows()
            return [cell for cell in self.cells if (cell.name, cell.digest) not in known]
        done = {trial.cell.name for trial in self.finished}
        return [cell for cell in self.cells if cell.name not in done]

    @property
    def frames(self) -> Sequence[str]:
        return ["summary"] if self._only_summary else super().frames

    @property
    def labels(self) -> Mapping[str, Mapping[str, object]]:
        return {trial.cell.name: trial.cell.labels for trial in self.finished}

    @cached_property
    def runs(self) -> Mapping[str, Run]:
        """The runs of finished cells, by the cell's name."""
        return {trial.cell.name: Run(trial.cell.folder) for trial in self.finished}

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each finished cell. Raise ConfigError without a finished cell."""
        if not self._rows:
            raise ConfigError(f"{self.folder} must have a finished cell, got none")
        return frame([row for _, row in self._rows])

    @property
    def failures(self) -> list[str]:
        """The faults of finished trials, a sentence each; a missed target is a result, not a fault."""
        return [f"{cell.title}: {row[name]}" for cell, row in self._rows for name in FAULTS if row.get(name)]

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name in TABLES and self._only_summary:
            reason = "experiment.lean" if self.file.section.lean else f"experiment.mode = {self.file.section.mode!r}"
            raise ConfigError(f"{self.folder} has no {name}: {reason} keeps only summary")
        return super().__getattr__(name)

    @property
    def _only_summary(self) -> bool:
        return self.file.rows_only or self.file.section.lean

    @cached_property
    def _rows(self) -> list[tuple[Cell, dict[str, Any]]]:
        """The finished cells with their rows."""
        if self.file.rows_only:
            known = RowFile(self.folder).rows()
            rows = [(cell, known.get((cell.name, cell.digest))) for cell in self.cells]
            return [(cell, {**cell.labels, **row}) for cell, row in rows if row is not None]
        own = self._own_columns()
        return [(trial.cell, self._row(trial, own)) for trial in self.finished]

    def _own_columns(self) -> Callable[[FinishedTrial], Mapping[str, Any]]:
        name = self.file.section.own_columns
        return (lambda trial: {}) if name is None else HOOKS.load(name)

    def _row(self, trial: FinishedTrial, own: Callable[[FinishedTrial], Mapping[str, Any]]) -> dict[str, Any]:
        """Return a trial's row, with the command line's configuration of the run in `config`."""
        return {
            **trial.cell.labels,
            "trial": trial.summary.objective,
            **TRIAL.row(TrialSetting.of(trial.config), trial.summary, DerivedValues.of(trial.summary)),
            **own(trial),
            "config": str(trial.cell.source.relative_to(self.folder)),
        } | {SEED: trial.cell.seed}


def read(folder: Path | str) -> Run | Seeds | Experiment:
    """Read the results in the folder of a run, of a run with several seeds, or of an experiment.

    Runs and experiments may be in progress: then their results so far are read. Raise ConfigError for another folder.
    """
    path = Path(folder)
    if (path / EXPERIMENT).exists():
        return Experiment(path)
    check_results(path)
    return Seeds(path) if read_record(path).seeds else Run(path)


def check_results(path: Path) -> None:
    """Raise ConfigError unless the folder has a run or an experiment."""
    names = (FILE, EXPERIMENT)
    if any((path / name).exists() for name in names):
        return
    inside = [found.parent for name in names for found in path.glob(f"*/{name}")]
    hint = (
        f"name one of the {len(inside)} in it, {min(inside)} for example"
        if inside
        else "kofn runs lists those in runs/"
    )
    what = "it is a file" if path.is_file() else f"it has no {FILE} and no {EXPERIMENT}"
    raise ConfigError(f"{path} must be the folder of a run or an experiment: {what}; {hint}")


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a frame of rows; the column types permit missing values, so that whole numbers stay whole."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame({name: pd.array([row.get(name) for row in rows]) for name in names})
