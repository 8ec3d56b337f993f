"""The results of one or several runs as tidy frames, and their comparison: tables, ratios and plots with intervals."""

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from kofn.report.frames import TABLES
from kofn.report.interval import Interval
from kofn_common.config.errors import ConfigError
from kofn_common.config.suggestion import did_you_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kofn.report.reader import Run

SEED = "seed"

USUAL = ("progress_per_s", "time_to_target_s", "iterations_to_target", "mean_iteration_s", "bytes_sent", "gradients")
"""The columns that are shown, if there are no others to choose: those of them that the trials have."""

Where = Mapping[str, object]
"""By column, the value, or a list of the values, of the rows that are meant."""


class Results(ABC):
    """Trials that are compared: those of a run, of a run with several seeds, or of an experiment.

    `summary` has a row for each trial. The columns in `by` say what a trial is, apart from its seed.
    """

    @property
    def baseline(self) -> str | None:
        """The contender that the others are compared with, unless a method's argument says otherwise."""
        return None

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder of the files."""

    @property
    @abstractmethod
    def runs(self) -> "Mapping[str, Run]":
        """The runs, by the name of the run's folder, relative to `folder`."""

    @property
    @abstractmethod
    def summary(self) -> pd.DataFrame:
        """A row for each trial."""

    @property
    @abstractmethod
    def axes(self) -> Sequence[str]:
        """The columns whose combinations are the worlds in which contenders are compared."""

    @property
    @abstractmethod
    def contender(self) -> str:
        """The column with the names of what is compared."""

    @property
    def frames(self) -> Sequence[str]:
        """The names of the data frames."""
        return list(TABLES)

    @property
    def by(self) -> list[str]:
        return [*self.axes, self.contender]

    @property
    def columns(self) -> list[str]:
        """The columns of `summary` that have numbers."""
        frame = self.summary.drop(columns=[*self.by, SEED], errors="ignore")
        return [str(name) for name in frame.select_dtypes(["number", "bool"]) if frame[name].notna().any()]

    def table(self, *columns: str, where: Where | None = None) -> pd.DataFrame:
        """Return a row for each combination of the axes and contender: for each of `columns`, or of all, its mean over
        the seeds, the ends of its 95 % interval (COLUMN_low, COLUMN_high), and the number of seeds with a value
        (COLUMN_n).

        The mean is missing if a seed has no value, because that seed never reached the target for example. Raise
        ConfigError for an unknown column, or if no trial is meant.
        """
        rows = []
        for key, group in groups(self.rows(where), self.by):
            row: dict[str, object] = {**key, "n": len(group)}
            for column in columns or self.columns:
                row |= _interval(column, self.values(group, column).dropna(), len(group))
            rows.append(row)
        return pd.DataFrame(rows)

    def ratio(self, column: str, baseline: str | None = None, where: Where | None = None) -> pd.DataFrame:
        """Return a row for each combination of the axes and contender: the geometric mean of the column's ratio to the
        baseline's value with the same seed, the ends of its 95 % interval, and the number of seeds with a ratio.

        A ratio of 0.5 says that the value, a time for example, is half of the baseline's. The ratio is missing if a
        seed of one of both has no value. Raise ConfigError for an unknown column or baseline.
        """
        paired = self.paired(column, baseline, where)
        rows = [
            {**key, "n": len(group), **_interval("ratio", group["ratio"].dropna(), len(group))}
            for key, group in groups(paired, self.by)
        ]
        return pd.DataFrame(rows)

    def paired(self, column: str, baseline: str | None = None, where: Where | None = None) -> pd.DataFrame:
        """Return a row for each trial with the column `ratio`: the trial's value divided by the baseline's value with
        the same axes and seed; missing if one of both has none."""
        frame = self.rows(where)
        every = self.rows({name: value for name, value in (where or {}).items() if name != self.contender})
        name = self._baseline(every, baseline)
        keys = [*self.axes, SEED]
        own, others = (rows[[*self.by, SEED]].assign(value=self.values(rows, column)) for rows in (frame, every))
        base = others[others[self.contender] == name][[*keys, "value"]].rename(columns={"value": "of_baseline"})
        if base.duplicated(keys).any():
            raise ConfigError(f"{name!r} must be one trial with each seed, got several")
        both = own.merge(base, on=keys, how="inner")
        return both.assign(ratio=both["value"] / both["of_baseline"]).drop(columns=["value", "of_baseline"])

    def plot(
        self,
        x: str | None = None,
        y: str = "mean_iteration_s",
        *,
        lines: str | None = None,
        panels: str | None = None,
        relative: bool = False,
        baseline: str | None = None,
        where: Where | None = None,
    ) -> "Axes | list[Axes]":
        """Draw the means of column `y` over the seeds with 95 % intervals; return matplotlib's axes, or with `panels` a
        list of axes.

        `x`, `lines` and `panels` are columns of `by`. Numbers along x are joined by lines, names are not. If one
        further column of `by` has several values, it becomes the panels. With `relative`, y is the ratio to the
        baseline's value with the same seed. Raise ConfigError for an unknown column, if no trial is meant, or if two
        further columns have several values, since a mean over them would hide them.
        """
        from kofn.report.plots import draw  # noqa: PLC0415  # needs kofn[plots]

        x = x or (self.contender if not self.axes else self.axes[0])
        lines = lines or (None if self.contender in (x, panels) else self.contender)
        for name in filter(None, (x, lines, panels)):
            self._one_of(name, self.by, "a column")
        if relative:
            frame, column = self.paired(y, baseline, where), "ratio"
            label = f"{y}, over {baseline or self.baseline}"
        else:
            frame, column, label = self.rows(where), y, y
            frame = frame.assign(**{y: self.values(frame, y)})
        further = [name for name in self.by if name not in (x, lines, panels) and frame[name].nunique() > 1]
        if len(further) > (panels is None):
            raise ConfigError(
                f"{', '.join(further)} must be x, lines, panels or one value by where, got several values"
            )
        panels = panels or next(iter(further), None)
        return draw(frame, x, column, lines=lines, panels=panels, label=label, one=1.0 if relative else None)

    def _baseline(self, frame: pd.DataFrame, baseline: str | None) -> str:
        known = list(dict.fromkeys(frame[self.contender]))
        name = baseline or self.baseline
        if name is None:
            raise ConfigError(f"baseline must be one of {', '.join(known)}, got none")
        self._one_of(name, known, "baseline")
        return name

    def rows(self, where: Where | None = None) -> pd.DataFrame:
        """Return the rows of `summary` that are meant. Raise ConfigError if there is none."""
        frame = self._meant(where)
        if frame.empty:
            raise ConfigError(f"{self.folder} must have a finished trial{f' with {where}' if where else ''}, got none")
        return frame

    def has(self, where: Where | None) -> bool:
        """Return whether rows are meant. Raise ConfigError for an unknown column or value."""
        return not self._meant(where).empty

    def _meant(self, where: Where | None) -> pd.DataFrame:
        frame = self.summary
        for name, value in (where or {}).items():
            self._one_of(name, [*self.by, SEED], "a column of where")
            values = value if isinstance(value, list | tuple) else [value]
            for wanted in values:
                self._one_of(wanted, self.known(name), f"where: {name}")
            frame = frame[frame[name].isin(values)]
        return frame

    def known(self, column: str) -> Sequence[object]:
        """Return the values that a column of `by`, or the seed, may have."""
        return list(dict.fromkeys(self.summary[column]))

    def values(self, frame: pd.DataFrame, column: str) -> "pd.Series[Any]":
        """Return a column of rows of `summary` as floating-point numbers, NaN where it is missing."""
        if column in self.summary and self.summary[column].isna().all():
            return pd.Series(math.nan, index=frame.index)
        self._one_of(column, self.columns, "a column")
        return frame[column].astype("Float64").astype("float64")

    def worlds(self, frame: pd.DataFrame) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
        """Yield each combination of the axes with its rows."""
        return groups(frame, list(self.axes)) if self.axes else iter([({}, frame)])

    @staticmethod
    def _one_of(name: object, known: Sequence[object], what: str) -> None:
        if name not in known:
            words = [str(entry) for entry in known]
            raise ConfigError(f"{what} must be one of {', '.join(words)}, got {name!r}{did_you_mean(str(name), words)}")


def groups(frame: pd.DataFrame, columns: Sequence[str]) -> Iterator[tuple[dict[str, object], pd.DataFrame]]:
    """Yield each combination of the columns' values with its rows, in the order of the rows."""
    for key, group in frame.groupby(list(columns), sort=False, dropna=False):
        yield dict(zip(columns, key, strict=True)), group


def _interval(name: str, values: "pd.Series[Any]", wanted: int) -> dict[str, float | int]:
    """Return the columns of a mean: mean and ends of the interval are missing unless all seeds have a value."""
    found = Interval.of(values.tolist()) if len(values) == wanted else None
    ends = (None, None, None) if found is None else (found.mean, found.low, found.high)
    mean, low, high = (math.nan if value is None else value for value in ends)
    return {name: mean, f"{name}_low": low, f"{name}_high": high, f"{name}_n": len(values)}


class SeveralRuns(Results):
    """Several runs. Their data frames are those of the runs, one below the other, after the columns that name the run:
    the axes, the contender and the seed."""

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, Mapping[str, object]]:
        """By the name of a run, the values of the columns that name it."""

    def __getattr__(self, name: str) -> pd.DataFrame:
        """Return a data frame of all runs."""
        if name not in TABLES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._together(name)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row for each trial with a finished iteration."""
        return self._together("summary")

    def __repr__(self) -> str:
        found = self.table(*self.usual)
        return f"{self.folder}: {len(self.summary)} trials\n{found.to_string(index=False)}"

    def _repr_html_(self) -> str:
        found: str = self.table(*self.usual).to_html(index=False)
        return f"<p>{html.escape(str(self.folder))}: {len(self.summary)} trials</p>\n{found}"

    @property
    def usual(self) -> list[str]:
        """The columns that are shown unless others are asked for; the first one decides which contender is the best."""
        return [name for name in USUAL if name in self.columns] or self.columns[:4]

    def _together(self, name: str) -> pd.DataFrame:
        """Return a data frame of all runs. Raise ConfigError if no run has begun."""
        frames = []
        for run, labels in self.labels.items():
            frame: pd.DataFrame = getattr(self.runs[run], name)
            rest = frame.drop(columns=[*labels], errors="ignore")
            own = pd.DataFrame({key: [value] * len(frame) for key, value in labels.items()}, index=frame.index)
            frames.append(pd.concat([own, rest], axis="columns"))
        if not frames:
            raise ConfigError(f"{self.folder} must have a run with a finished trial, got none")
        return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
