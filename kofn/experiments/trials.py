"""The tidy table of an experiment: a row for each trial, read from finished runs; OUT/results.csv.

The columns are: experiment, scenario; the columns of the data frame `summary` of kofn.read(); the command that repeats
the run; and the experiment's own columns. A cell is missing if its figure is unknown. For example, time_to_target_s is
missing if the target was not reached.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from msgspec import structs

from kofn.experiments.matrix import Cell, CellResult
from kofn.report.frames import TrialSetting, summary_columns
from kofn.report.summary import TrialSummary
from kofn_common.config.schema import Config
from kofn_common.results.folder import TrialFolder
from kofn_common.results.worker_metrics import WorkerMetrics, read_trial

FILE = "results.csv"

Row = Mapping[str, object]
"""A number, a text or None for each column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrial:
    """A trial of a finished run."""

    cell: Cell
    folder: TrialFolder
    summary: TrialSummary

    @property
    def config(self) -> Config:
        return self.cell.config

    def metrics(self) -> tuple[WorkerMetrics, ...]:
        """Return the metrics of every worker. Raise RunError if a file is missing."""
        return read_trial(self.folder, self.config.job.workers)


def read_trials(experiment: str, results: Iterable[CellResult], own: Callable[[FinishedTrial], Row]) -> pd.DataFrame:
    """Return the table of finished runs; `own` returns the experiment's own columns."""
    finished = [trial for result in results for trial in _trials(result)]
    return frame([{"experiment": experiment, **_columns(trial), **own(trial)} for trial in finished])


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return a frame of rows; the column types permit missing values, so that whole numbers stay whole."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pd.DataFrame({name: pd.array([row.get(name) for row in rows]) for name in names})


def write(trials: pd.DataFrame, folder: Path) -> None:
    """Write the table of trials, if there are any, into the experiment's folder."""
    if len(trials):
        trials.to_csv(folder / FILE, index=False)


def _trials(result: CellResult) -> Iterator[FinishedTrial]:
    for folder, summary in zip(result.cell.job().trials, result.trials, strict=True):
        yield FinishedTrial(cell=result.cell, folder=folder, summary=summary)


def _columns(trial: FinishedTrial) -> Row:
    return {
        "scenario": trial.cell.scenario.name,
        **structs.asdict(TrialSetting.of(trial.config)),
        **summary_columns(trial.summary),
        "command": f"kofn run {trial.cell.source}",
    }
